#pragma once

#include "vectors.h"

#if defined(CPU_CAPABILITY_AVX512)

namespace millm {

// Turns the columns of a matrix of 16 x 16 words into rows. Unrolled and inlined, so that all of it stays in registers.
inline __attribute__((always_inline)) void transpose(__m512i (&v)[16]) {
  __m512i twos[16], fours[16], eights[16];
  unrolled<8>([&](auto i) {
    twos[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    twos[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  });
  unrolled<8>([&](auto n) {
    constexpr int i = n / 2 * 4, j = n % 2;
    fours[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + 2 + j]);
    fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + 2 + j]);
  });
  unrolled<8>([&](auto n) {
    constexpr int i = n / 4 * 8, j = n % 4;
    eights[i + j] = _mm512_shuffle_i32x4(fours[i + j], fours[i + 4 + j], 0x88);
    eights[i + 4 + j] = _mm512_shuffle_i32x4(fours[i + j], fours[i + 4 + j], 0xDD);
  });
  unrolled<8>([&](auto j) {
    v[j] = _mm512_shuffle_i32x4(eights[j], eights[8 + j], 0x88);
    v[8 + j] = _mm512_shuffle_i32x4(eights[j], eights[8 + j], 0xDD);
  });
}

}  // namespace millm

#endif
