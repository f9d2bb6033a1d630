# Writes vqllm_device_blocks.h: the text of every kernels/device/*.cuh as a raw string, so that the library carries what emitted
# files are made of. Called at build time: cmake -DFOLDER=... -DOUTPUT=... -P embed.cmake
file(GLOB BLOCKS ${FOLDER}/*.cuh)
list(SORT BLOCKS)
set(TEXT "// Made by codegen/embed.cmake from kernels/device.\n#pragma once\n\nnamespace vqllm::internal {\n\n")
string(APPEND TEXT "struct EmbeddedBlock {\n  const char* name;\n  const char* text;\n};\n\n")
string(APPEND TEXT "inline constexpr EmbeddedBlock kDeviceBlocks[] = {\n")
foreach(path ${BLOCKS})
  get_filename_component(name ${path} NAME_WE)
  file(READ ${path} content)
  string(APPEND TEXT "    {\"${name}\", R\"device(${content})device\"},\n")
endforeach()
string(APPEND TEXT "};\n\n}  // namespace vqllm::internal\n")
file(WRITE ${OUTPUT} "${TEXT}")
