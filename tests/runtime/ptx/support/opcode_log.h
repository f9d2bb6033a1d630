#pragma once

#include "runtime/ptx/interpreter.h"

namespace vqllm::ptx::test {

/// Where $VQLLM_OPCODE_LOG names a file, the tests of the instruction set append to it the opcodes that they
/// execute; the test Coverage.EveryFormIsExecutedByATestOfItsValues reads it.
bool OpcodeLogWanted();
/// Needs LaunchOptions::lines.
void LogOpcodes(const LaunchReport& report);

}  // namespace vqllm::ptx::test
