// A user of the installed library.
#include <cstdio>

#include "vq/format.h"

int main() {
  const vqllm::Format format = vqllm::ParseFormat("VQ<4,8,1>");
  std::printf("%s takes %.3f bits a weight on 4096 x 4096\n", format.name.c_str(),
              vqllm::EffectiveBits(format, 4096, 4096));
  return vqllm::EffectiveBits(format, 4096, 4096) > 2.0 ? 0 : 1;
}
