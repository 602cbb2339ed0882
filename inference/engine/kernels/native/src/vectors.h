// Rows of float32, bfloat16 or float16 as vectors of float32; at::vec picks AVX-512, AVX2, NEON or plain C++.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tensor_view.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define MILLM_BF16_DOT 1
#else
#define MILLM_BF16_DOT 0
#endif
#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define MILLM_INT8_DOT 1
#else
#define MILLM_INT8_DOT 0
#endif

namespace millm {

using Vec = at::vec::Vectorized<float>;
constexpr int64_t kLanes = Vec::size();

inline Vec load(const float* p) { return Vec::loadu(p); }

inline Vec load(const BFloat16* p) {
  Vec out;
  at::vec::load_fp32_from_bf16(p, out);
  return out;
}

inline Vec load(const Half* p) {
  Vec out;
  at::vec::load_fp32_from_fp16(p, out);
  return out;
}

inline Vec load(const int8_t* p) {
#if defined(CPU_CAPABILITY_AVX512)
  return Vec(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
#elif defined(CPU_CAPABILITY_AVX2)
  return Vec(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
#else
  float lanes[kLanes];
  std::copy(p, p + kLanes, lanes);
  return Vec::loadu(lanes);
#endif
}

// The first `count` lanes of a row's end, zeros behind them.
template <typename T>
inline Vec load(const T* p, int64_t count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes];
  std::fill(padded, padded + kLanes, T(0));
  std::copy(p, p + count, padded);
  return load(padded);
}

template <typename T>
inline void store(T* p, const Vec& v, int64_t count) {
  if (count >= kLanes) return at::vec::convert_from_float<T>(v, v).store(p, static_cast<int>(kLanes));
  float lanes[kLanes];
  v.store(lanes);
  for (int64_t i = 0; i < count; ++i) p[i] = static_cast<T>(lanes[i]);
}

template <>
inline void store(float* p, const Vec& v, int64_t count) {
  v.store(p, static_cast<int>(std::min(count, kLanes)));
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
template <>
inline void store(BFloat16* p, const Vec& v, int64_t count) {
  const __mmask16 mask = count >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << count) - 1);
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(v));
}
#endif

template <typename F, int... I>
inline __attribute__((always_inline)) void unrolled(F&& f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}

// f(0) .. f(N - 1), each with a number that the compiler knows: arrays that it indexes can stay in registers.
template <int N, typename F>
inline __attribute__((always_inline)) void unrolled(F&& f) {
  unrolled(f, std::make_integer_sequence<int, N>{});
}

inline float sum(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, v);
}

// The sums of four vectors' lanes.
inline void four_sums(const Vec& a, const Vec& b, const Vec& c, const Vec& d, float* out) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  const Vec* all[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) out[i] = sum(*all[i]);
#endif
}

inline float largest(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, v);
}

}  // namespace millm
