#pragma once

#include "vectors.h"

#if defined(CPU_CAPABILITY_AVX512)

namespace millm {

// Turns the columns of a matrix of 16 x 16 words into rows.
inline void transpose(__m512i (&v)[16]) {
  __m512i twos[16], fours[16], eights[16];
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + 2 + j]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + 2 + j]);
    }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      eights[i + j] = _mm512_shuffle_i32x4(fours[i + j], fours[i + 4 + j], 0x88);
      eights[i + 4 + j] = _mm512_shuffle_i32x4(fours[i + j], fours[i + 4 + j], 0xDD);
    }
  for (int j = 0; j < 8; ++j) {
    v[j] = _mm512_shuffle_i32x4(eights[j], eights[8 + j], 0x88);
    v[8 + j] = _mm512_shuffle_i32x4(eights[j], eights[8 + j], 0xDD);
  }
}

}  // namespace millm

#endif
