#pragma once

// Eight values of E8P (QuIP#, arXiv 2402.04396): `packed` holds 2 * |value| + 8 in nibbles and `signs` the sign
// bits, both in the order 0 2 4 6 1 3 5 7, so that one shift and one mask give a pair of neighbours. Bit 0 of the
// signs is flipped where their parity is odd; the parity chooses the shift of + or - 1/4.
__device__ __forceinline__ void DecodeE8P(unsigned packed, unsigned signs, unsigned (&pairs)[4]) {
  const unsigned parity = __popc(signs) & 1;
  signs ^= parity;
  const unsigned spread = (signs & 0xf) | (signs & 0xf0) << 12;  // signs of even values low, of odd ones high
  const unsigned shift = 0x34003400u | parity * 0x80008000u;     // +1/4 or -1/4, twice
  #pragma unroll
  for (int j = 0; j < 4; ++j) {
    // (1024 + nibble) / 2 - 516 = (nibble - 8) / 2, exact in fp16.
    const unsigned magnitude = FmaPairs(MaskedHalf(packed >> 4 * j, 0x000f000fu), 0x38003800u, 0xe008e008u);
    pairs[j] = AddPairs(magnitude ^ (spread >> j & 0x00010001u) << 15, shift);
  }
}
