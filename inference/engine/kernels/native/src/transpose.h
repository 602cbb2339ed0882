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

// Four words of each of sixteen rows, `stride` bytes apart, as four vectors of one word each. The words are loaded into
// their quarters of the vectors, which leaves half of the work of `transpose`.
inline __attribute__((always_inline)) void turn_words(const char* rows, int64_t stride, __m512i (&words)[4]) {
  __m512i v[4];  // rows i, 4 + i, 8 + i and 12 + i
  unrolled<4>([&](auto i) {
    const char* row = rows + i * stride;
    const auto load = [&](const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    v[i] = _mm512_castsi128_si512(load(row));
    v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x00F0, load(row + 4 * stride));
    v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x0F00, load(row + 8 * stride));
    v[i] = _mm512_mask_broadcast_i32x4(v[i], 0xF000, load(row + 12 * stride));
  });
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  words[0] = _mm512_unpacklo_epi64(a, c);
  words[1] = _mm512_unpackhi_epi64(a, c);
  words[2] = _mm512_unpacklo_epi64(b, d);
  words[3] = _mm512_unpackhi_epi64(b, d);
}

}  // namespace millm

#endif
