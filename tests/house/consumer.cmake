# Installs the build into a fresh folder and builds a small program against it with find_package(vqllm).
set(WORK ${BUILD_DIR}/consumer)
file(REMOVE_RECURSE ${WORK})
if(SANITIZE)
  set(FLAGS "-fsanitize=address,undefined")
endif()
foreach(step
        "${CMAKE_COMMAND};--install;${BUILD_DIR};--prefix;${WORK}/prefix"
        "${CMAKE_COMMAND};-G;Ninja;-S;${SOURCE_DIR};-B;${WORK}/build;-DCMAKE_PREFIX_PATH=${WORK}/prefix;-DCMAKE_CXX_FLAGS=${FLAGS}"
        "${CMAKE_COMMAND};--build;${WORK}/build"
        "${WORK}/build/consumer")
  execute_process(COMMAND ${step} RESULT_VARIABLE result)
  if(result)
    message(FATAL_ERROR "failed: ${step}")
  endif()
endforeach()
