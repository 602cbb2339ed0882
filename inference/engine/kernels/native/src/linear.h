// Products of a few rows with row-major weights, bound by the weights' way through memory.
//
// bfloat16: AVX-512's dot product of pairs with float32 accumulation. int8: a row of activations becomes 16-bit
// integers (scale by its largest value) in two planes of bytes, so that each product is two exact byte dot products.
// int8 with activations of 8 bits: the same with one plane, rounded more coarsely.
#pragma once

#include <cmath>
#include <vector>

#include "interleaved.h"
#include "kernels.h"
#include "panels.h"
#include "vectors.h"
#include "wide_linear.h"

namespace millm {

constexpr int kColumns = 4;  // weight rows in flight
// How much slower, in percent, tiles of a few rows are than panels.
constexpr int64_t kPairGain = 7, kByteGain = 4, kPlanesGain = 12;

#if MILLM_BF16_DOT || MILLM_INT8_DOT

constexpr int kSumRows = 4;  // rows of sums in a vector: four columns each

inline __m512 plus(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __v16si plus(__v16si a, __v16si b) { return a + b; }
template <int PICK>
inline __m512 quarters(__m512 a, __m512 b) { return _mm512_shuffle_f32x4(a, b, PICK); }
template <int PICK>
inline __v16si quarters(__v16si a, __v16si b) {
  return (__v16si)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, PICK);
}
template <int PICK>
inline __m512 lanes(__m512 a, __m512 b) { return _mm512_shuffle_ps(a, b, PICK); }
template <int PICK>
inline __v16si lanes(__v16si a, __v16si b) {
  return (__v16si)_mm512_shuffle_ps((__m512)a, (__m512)b, PICK);
}

// The sums of up to four rows of four vectors: that of [r][c] in lane 4 r + c. Each is added in the order of
// _mm512_reduce_add_ps, with a third of its instructions. Lanes of further rows have any value.
template <int ROWS, typename V>
inline V sums_of(const V (*v)[kColumns]) {
  V fours[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    const V a = v[0][c], b = v[ROWS > 1 ? 1 : 0][c], d = v[ROWS > 2 ? 2 : 0][c], e = v[ROWS > 3 ? 3 : 0][c];
    const V front = plus(quarters<0x44>(a, b), quarters<0xEE>(a, b));
    const V back = ROWS > 2 ? plus(quarters<0x44>(d, e), quarters<0xEE>(d, e)) : front;
    fours[c] = plus(quarters<0x88>(front, back), quarters<0xDD>(front, back));
  }
  V eights[2];
  for (int p = 0; p < 2; ++p)
    eights[p] = plus(lanes<0x44>(fours[2 * p], fours[2 * p + 1]), lanes<0xEE>(fours[2 * p], fours[2 * p + 1]));
  return plus(lanes<0x88>(eights[0], eights[1]), lanes<0xDD>(eights[0], eights[1]));
}

// Four values for each of the rows of a vector of sums; zeros behind the first `count`.
inline __m512 for_each_row(const float* values, int64_t count) {
  if (values == nullptr) return _mm512_setzero_ps();
  const __m128 four = _mm_maskz_loadu_ps(static_cast<__mmask8>((1 << count) - 1), values);
  return _mm512_broadcast_f32x4(four);
}

// The value of each row, four times; zeros behind `count` rows.
inline __m512 of_each_row(const float* values, int64_t count) {
  const __m128 four = _mm_maskz_loadu_ps(static_cast<__mmask8>((1 << count) - 1), values);
  const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(row, _mm512_castps128_ps512(four));
}

template <typename T>
inline __m512 for_each_row(const T* values, int64_t count) {
  float four[kColumns] = {};
  if (values != nullptr)
    for (int64_t c = 0; c < count; ++c) four[c] = static_cast<float>(values[c]);
  return for_each_row(four, kColumns);
}

// Rows of four columns each, `stride` apart.
template <typename T>
inline void store_sums(T* out, int64_t stride, __m512 sums, int rows, int64_t columns) {
  T values[kSumRows * kColumns];
  store(values, Vec(sums), kLanes);
  for (int r = 0; r < rows; ++r) {
    if (columns == kColumns)
      std::memcpy(out + r * stride, values + r * kColumns, kColumns * sizeof(T));
    else
      std::copy(values + r * kColumns, values + r * kColumns + columns, out + r * stride);
  }
}

#endif

#if MILLM_BF16_DOT || MILLM_INT8_DOT

inline void keep(float* out, __m512 sums) { _mm512_storeu_ps(out, sums); }
inline void keep(int32_t* out, __v16si sums) { _mm512_storeu_si512(out, (__m512i)sums); }

// ROWS x COLUMNS of the product.
template <typename How, int ROWS, int COLUMNS>
inline void dot_tile(const typename How::Row* x, int64_t x_stride, const typename How::Weight* w, int64_t k, Ahead ahead,
                     typename How::Sum out[][kColumns]) {
  constexpr int64_t kStep = How::kStep;
  typename How::Sums acc[ROWS][COLUMNS];
  for (auto& row : acc)
    for (auto& a : row) a = How::zero();
  // Three rows from one pointer: with a pointer for each, GCC keeps sums in memory for lack of registers.
  const typename How::Row *front = x, *back = x + 3 * x_stride;
  const typename How::Weight* column = w;
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep, front += kStep, back += kStep, column += kStep) {
    asm("" : "+r"(front), "+r"(back), "+r"(column));
    typename How::Numbers columns[COLUMNS];
    ahead.step();
    for (int c = 0; c < COLUMNS; ++c) columns[c] = How::read(column + c * k);
    for (int r = 0; r < ROWS; ++r) {
      const auto row = How::read(r < 3 ? front + r * x_stride : back + (r - 3) * x_stride);
      for (int c = 0; c < COLUMNS; ++c) acc[r][c] = How::add(acc[r][c], row, columns[c]);
    }
  }
  if (i < k)
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < COLUMNS; ++c)
        acc[r][c] = How::add(acc[r][c], How::read(x + r * x_stride + i, k - i), How::read(w + c * k + i, k - i));
  if constexpr (COLUMNS == kColumns) {
    keep(out[0], sums_of<std::min(ROWS, kSumRows)>(acc));
    if constexpr (ROWS > kSumRows) keep(out[kSumRows], sums_of<ROWS - kSumRows>(acc + kSumRows));
  } else
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < COLUMNS; ++c) out[r][c] = How::total(acc[r][c]);
}

// One row: the weights in one straight line, which the processor fetches ahead best.
template <typename How>
inline void dot_line(const typename How::Row* x, const typename How::Weight* w, int64_t k, int64_t columns,
                     typename How::Sum* out) {
  constexpr int kParts = 4;
  constexpr int64_t kStep = How::kStep, kAhead = 4096 / static_cast<int64_t>(sizeof(typename How::Weight));
  for (int64_t c = 0; c < columns; ++c) {
    const auto* column = w + c * k;
    typename How::Sums acc[kParts];
    for (auto& a : acc) a = How::zero();
    int64_t i = 0;
    for (; i + kStep * kParts <= k; i += kStep * kParts)
      for (int p = 0; p < kParts; ++p) {
        fetch_ahead(column + i + kStep * p + kAhead);
        acc[p] = How::add(acc[p], How::read(x + i + kStep * p), How::read(column + i + kStep * p));
      }
    for (; i < k; i += kStep) {
      const int64_t left = std::min(kStep, k - i);
      acc[0] = How::add(acc[0], How::read(x + i, left), How::read(column + i, left));
    }
    out[c] = How::total(plus(plus(acc[0], acc[1]), plus(acc[2], acc[3])));
  }
}

template <typename How, int COLUMNS>
inline void dot_rows(int rows, const typename How::Row* x, int64_t x_stride, const typename How::Weight* w, int64_t k,
                     Ahead ahead, typename How::Sum out[][kColumns]) {
  switch (rows) {
    case 1: return dot_tile<How, 1, COLUMNS>(x, x_stride, w, k, ahead, out);
    case 2: return dot_tile<How, 2, COLUMNS>(x, x_stride, w, k, ahead, out);
    case 3: return dot_tile<How, 3, COLUMNS>(x, x_stride, w, k, ahead, out);
    case 4: return dot_tile<How, 4, COLUMNS>(x, x_stride, w, k, ahead, out);
    case 5: return dot_tile<How, 5, COLUMNS>(x, x_stride, w, k, ahead, out);
    default: return dot_tile<How, 6, COLUMNS>(x, x_stride, w, k, ahead, out);
  }
}

// All of a product with w [n, k]; put(row, rows, column, columns, sums) takes up to four rows of up to four columns each.
template <typename How, typename PutSums>
void multiply_dots(const typename How::Row* x, int64_t x_stride, int64_t rows, const typename How::Weight* w, int64_t n,
                   int64_t k, const PutSums& put) {
  parallel_for(0, (n + kColumns - 1) / kColumns, std::max<int64_t>(1, 65536 / k), [&](int64_t begin, int64_t end) {
    typename How::Sum tile[2 * kSumRows][kColumns] = {};
    const int64_t passes = (rows + 5) / 6;
    for (int64_t b = begin; b < end; ++b) {
      int64_t pass = 0;
      const int64_t column = b * kColumns, columns = std::min<int64_t>(kColumns, n - column);
      const auto* weights = w + column * k;
      for (int64_t r = 0; r < rows;) {
        const int64_t left = rows - r;
        const int take = static_cast<int>(left <= 6 ? left : left < 12 ? (left + 1) / 2 : 6);
        if (rows == 1)
          dot_line<How>(x, weights, k, columns, tile[0]);
        else if (columns == kColumns)
          dot_rows<How, kColumns>(take, x + r * x_stride, x_stride, weights, k,
                                  Ahead::share(b + 1 < end ? weights + kColumns * k : nullptr, kColumns * k, pass++,
                                               passes, k / How::kStep + 1),
                                  tile);
        else
          for (int64_t c = 0; c < columns; ++c) {
            typename How::Sum one[2 * kSumRows][kColumns];
            dot_rows<How, 1>(take, x + r * x_stride, x_stride, weights + c * k, k, {}, one);
            for (int i = 0; i < take; ++i) tile[i][c] = one[i][0];
          }
        for (int i = 0; i < take; i += kSumRows) put(r + i, std::min(kSumRows, take - i), column, columns, tile[i]);
        r += take;
      }
    }
  });
}

#endif

#if MILLM_BF16_DOT

struct PairProducts {
  using Row = BFloat16;
  using Weight = BFloat16;
  using Numbers = __m512bh;
  using Sums = __m512;
  using Sum = float;
  static constexpr bool kIsFloat = true;
  static constexpr int64_t kStep = 32;
  static Sums zero() { return _mm512_setzero_ps(); }
  static Numbers read(const BFloat16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Numbers read(const BFloat16* p, int64_t left) {
    return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << left) - 1), p);
  }
  static Sums add(Sums sums, Numbers row, Numbers column) { return _mm512_dpbf16_ps(sums, row, column); }
  static float total(Sums sums) { return _mm512_reduce_add_ps(sums); }
};

void multiply_interleaved_bf16(const TensorView& x, const TensorView& w, const BFloat16* bias, const TensorView& out) {
  multiply_interleaved<PairProducts, 1>(
      reinterpret_cast<const Word*>(x.as<BFloat16>()), x.stride(0) / 2, x.size(0),
      reinterpret_cast<const Word*>(w.as<BFloat16>()), out.size(1), w.size(1),
      [&](int64_t, int64_t column, const __m512 (&sums)[1]) {
        return plus(sums[0], bias ? static_cast<__m512>(load(bias + column)) : _mm512_setzero_ps());
      },
      out.as<BFloat16>());
}

// Ordered: each sum adds its pairs one after the other, for any number of rows.
void multiply_bf16(const TensorView& x, const TensorView& w, const BFloat16* bias, bool ordered, const TensorView& out) {
  const int64_t n = w.size(0);
  BFloat16* o = out.as<BFloat16>();
  if (ordered || fills_panels(x.size(0), kPanelRows, kPairGain))
    return multiply_panels<PairProducts, 1>(
        x.size(0), reinterpret_cast<const char*>(w.as<BFloat16>()), n, w.size(1) * 2,
        [&](int64_t panel, Word* words) {
          const int64_t row = panel * kPanelRows, stride = x.stride(0);
          fill_panel(x.as<BFloat16>() + row * stride, stride * 2, x.size(0) - row, w.size(1) * 2, words);
        },
        [&](int64_t, int64_t column, const __m512* sums) {
          return plus(*sums, _mm512_set1_ps(bias ? static_cast<float>(bias[column]) : 0.f));
        },
        o);
  multiply_dots<PairProducts>(
      x.as<BFloat16>(), x.stride(0), x.size(0), w.as<BFloat16>(), n, w.size(1),
      [&](int64_t row, int rows, int64_t column, int64_t columns, const float* sums) {
        const __m512 added = for_each_row(bias ? bias + column : nullptr, columns);
        store_sums(o + row * n + column, n, plus(_mm512_loadu_ps(sums), added), rows, columns);
      });
}

#endif

#if MILLM_INT8_DOT

constexpr int64_t kBytes = 64;

// One row as 16-bit integers around 32768: the high and the low byte of each, and the scale.
template <typename T>
inline float split_row(const T* x, int64_t k, int64_t padded, uint8_t* high, uint8_t* low) {
  const float most = largest_magnitude(x, k), factor = most > 0 ? 32767.f / most : 0.f;
  for (int64_t i = 0; i < padded; i += 16) {
    const __m512 values = i < k ? static_cast<__m512>(load(x + i, std::min<int64_t>(16, k - i))) : _mm512_setzero_ps();
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(values, _mm512_set1_ps(factor))),
                                           _mm512_set1_epi32(32768));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(whole));
  }
  return most / 32767.f;
}

// One row as 8-bit integers around 128, and the scale.
template <typename T>
inline float byte_row(const T* x, int64_t k, int64_t padded, uint8_t* out) {
  const float most = largest_magnitude(x, k), factor = most > 0 ? 127.f / most : 0.f;
  for (int64_t i = 0; i < padded; i += 16) {
    const __m512 values = i < k ? static_cast<__m512>(load(x + i, std::min<int64_t>(16, k - i))) : _mm512_setzero_ps();
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(values, _mm512_set1_ps(factor)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128))));
  }
  return most / 127.f;
}

struct ByteProducts {
  using Row = uint8_t;
  using Weight = int8_t;
  using Numbers = __m512i;
  using Sums = __v16si;  // as __m512i, GCC would keep them in memory
  using Sum = int32_t;
  static constexpr bool kIsFloat = false;
  static constexpr int64_t kStep = kBytes;
  static Sums zero() { return (Sums)_mm512_setzero_si512(); }
  static Numbers read(const void* p) { return _mm512_loadu_si512(p); }
  static Numbers read(const void* p, int64_t left) {
    return _mm512_maskz_loadu_epi8(left >= kBytes ? ~0ull : (1ull << left) - 1, p);
  }
  static Sums add(Sums sums, Numbers row, Numbers column) {
    return (Sums)_mm512_dpbusd_epi32((__m512i)sums, row, column);
  }
  static int32_t total(Sums sums) { return _mm512_reduce_add_epi32((__m512i)sums); }
};

template <int ROWS, int COLUMNS>
inline void int8_tile(const uint8_t* high, const uint8_t* low, int64_t padded, const int8_t* w, int64_t k,
                      Ahead ahead, int32_t tops[][kColumns], int32_t rests[][kColumns]) {
  __v16si top[ROWS][COLUMNS], rest[ROWS][COLUMNS];  // as __m512i, GCC would keep them in memory
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c) top[r][c] = rest[r][c] = (__v16si)_mm512_setzero_si512();
  const uint8_t *h = high, *l = low;
  const int8_t* column = w;
  for (int64_t left = k; left > 0; left -= kBytes, h += kBytes, l += kBytes, column += kBytes) {
    asm("" : "+r"(h), "+r"(l), "+r"(column));  // as in dot_tile
    ahead.step();
    const __mmask64 mask = left >= kBytes ? ~0ull : (1ull << left) - 1;
    __m512i columns[COLUMNS];
    unrolled<COLUMNS>([&](auto c) { columns[c] = _mm512_maskz_loadu_epi8(mask, column + c * k); });
    unrolled<ROWS>([&](auto r) {
      const __m512i of_high = _mm512_loadu_si512(h + r * padded);
      unrolled<COLUMNS>([&](auto c) { top[r][c] = (__v16si)_mm512_dpbusd_epi32((__m512i)top[r][c], of_high, columns[c]); });
      const __m512i of_low = _mm512_loadu_si512(l + r * padded);
      unrolled<COLUMNS>([&](auto c) { rest[r][c] = (__v16si)_mm512_dpbusd_epi32((__m512i)rest[r][c], of_low, columns[c]); });
    });
  }
  if constexpr (COLUMNS == kColumns) {
    _mm512_storeu_si512(tops[0], (__m512i)sums_of<ROWS>(top));
    _mm512_storeu_si512(rests[0], (__m512i)sums_of<ROWS>(rest));
  } else {
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < COLUMNS; ++c) {
        tops[r][c] = _mm512_reduce_add_epi32((__m512i)top[r][c]);
        rests[r][c] = _mm512_reduce_add_epi32((__m512i)rest[r][c]);
      }
  }
}

template <int ROWS>
inline void int8_line(const uint8_t* high, const uint8_t* low, int64_t padded, const int8_t* w, int64_t k,
                      int64_t columns, int32_t tops[][kColumns], int32_t rests[][kColumns]) {
  constexpr int kParts = 2;
  for (int64_t c = 0; c < columns; ++c) {
    const int8_t* column = w + c * k;
    __m512i top[ROWS][kParts], rest[ROWS][kParts];
    for (int r = 0; r < ROWS; ++r)
      for (int p = 0; p < kParts; ++p) top[r][p] = rest[r][p] = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + kBytes * kParts <= k; i += kBytes * kParts)
      for (int p = 0; p < kParts; ++p) {
        const int64_t at = i + p * kBytes;
        const __m512i weights = _mm512_loadu_si512(column + at);
        fetch_ahead(column + at + 4096);
        for (int r = 0; r < ROWS; ++r) {
          top[r][p] = _mm512_dpbusd_epi32(top[r][p], _mm512_loadu_si512(high + r * padded + at), weights);
          rest[r][p] = _mm512_dpbusd_epi32(rest[r][p], _mm512_loadu_si512(low + r * padded + at), weights);
        }
      }
    for (; i < k; i += kBytes) {
      const __m512i weights = _mm512_maskz_loadu_epi8(k - i >= kBytes ? ~0ull : (1ull << (k - i)) - 1, column + i);
      for (int r = 0; r < ROWS; ++r) {
        top[r][0] = _mm512_dpbusd_epi32(top[r][0], _mm512_loadu_si512(high + r * padded + i), weights);
        rest[r][0] = _mm512_dpbusd_epi32(rest[r][0], _mm512_loadu_si512(low + r * padded + i), weights);
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      tops[r][c] = _mm512_reduce_add_epi32(_mm512_add_epi32(top[r][0], top[r][1]));
      rests[r][c] = _mm512_reduce_add_epi32(_mm512_add_epi32(rest[r][0], rest[r][1]));
    }
  }
}

inline void int8_lines(int rows, const uint8_t* high, const uint8_t* low, int64_t padded, const int8_t* w, int64_t k,
                       int64_t columns, int32_t tops[][kColumns], int32_t rests[][kColumns]) {
  switch (rows) {
    case 1: return int8_line<1>(high, low, padded, w, k, columns, tops, rests);
    case 2: return int8_line<2>(high, low, padded, w, k, columns, tops, rests);
    default: return int8_line<3>(high, low, padded, w, k, columns, tops, rests);
  }
}

template <int COLUMNS>
inline void int8_rows(int rows, const uint8_t* high, const uint8_t* low, int64_t padded, const int8_t* w, int64_t k,
                      Ahead ahead, int32_t tops[][kColumns], int32_t rests[][kColumns]) {
  switch (rows) {
    case 1: return int8_tile<1, COLUMNS>(high, low, padded, w, k, ahead, tops, rests);
    case 2: return int8_tile<2, COLUMNS>(high, low, padded, w, k, ahead, tops, rests);
    default: return int8_tile<3, COLUMNS>(high, low, padded, w, k, ahead, tops, rests);
  }
}

// What 128 added to each activation has added to the sums, or 32768 to those of the high bytes.
inline __m512i taken_out(const int32_t* sums, int64_t count) {
  const __m128i four = _mm_maskz_loadu_epi32(static_cast<__mmask8>((1 << count) - 1), sums);
  return _mm512_broadcast_i32x4(_mm_slli_epi32(four, 7));
}

// What makes results of sums of bytes: the scales of rows and columns, and the sums of the columns' weights.
template <typename T>
struct ByteScales {
  const float *rows, *columns;
  const int32_t* sums;
  const T* bias;

  // Of the sums in each plane, what to take out of them, the scales and the bias.
  template <int PLANES>
  static __m512 result(const __v16si (&of_planes)[PLANES], __m512i taken, __m512 of_rows, __m512 of_columns,
                       __m512 added) {
    __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32((__m512i)of_planes[0], taken));
    if constexpr (PLANES == 2)
      whole = _mm512_fmadd_ps(_mm512_set1_ps(256.f), whole, _mm512_cvtepi32_ps((__m512i)of_planes[1]));
    return plus(_mm512_mul_ps(_mm512_mul_ps(whole, of_rows), of_columns), added);
  }
};

// The product of bytes in PLANES planes [rows, padded], one after the other: the high and the low ones, or one.
template <int PLANES, typename T>
void multiply_byte_panels(const uint8_t* planes, int64_t rows, int64_t padded, const TensorView& w,
                          const ByteScales<T>& scales, T* out) {
  multiply_panels<ByteProducts, PLANES>(
      rows, reinterpret_cast<const char*>(w.as<int8_t>()), w.size(0), w.size(1),
      [&](int64_t panel, Word* words) {
        const int64_t row = panel / PLANES * kPanelRows;
        fill_panel(planes + (panel % PLANES * rows + row) * padded, padded, rows - row, w.size(1), words);
      },
      [&](int64_t row, int64_t column, const __v16si* sums) {
        const __m512i taken = _mm512_slli_epi32(_mm512_set1_epi32(scales.sums[column]), 7);
        __v16si of_planes[PLANES];
        for (int p = 0; p < PLANES; ++p) of_planes[p] = sums[p];
        return scales.result(of_planes, taken, load(scales.rows + row, rows - row),
                             _mm512_set1_ps(scales.columns[column]),
                             _mm512_set1_ps(scales.bias ? static_cast<float>(scales.bias[column]) : 0.f));
      },
      out);
}

// The same with an interleaved weight; the planes of a row lie one after the other.
template <int PLANES, typename T>
void multiply_interleaved_bytes(const uint8_t* planes, int64_t rows, int64_t padded, const TensorView& w,
                                const ByteScales<T>& scales, const TensorView& out) {
  multiply_interleaved<ByteProducts, PLANES>(
      reinterpret_cast<const Word*>(planes), padded / 4, rows, reinterpret_cast<const Word*>(w.as<int8_t>()),
      out.size(1), w.size(1),
      [&](int64_t row, int64_t column, const __v16si (&sums)[PLANES]) {
        const __m512i taken = _mm512_slli_epi32(_mm512_loadu_si512(scales.sums + column), 7);
        return scales.result(sums, taken, _mm512_set1_ps(scales.rows[row]), load(scales.columns + column),
                             scales.bias ? static_cast<__m512>(load(scales.bias + column)) : _mm512_setzero_ps());
      },
      out.as<T>());
}

// The products of bytes, whose activations are rounded to 8 bits; sums take the 128 of each out again.
template <typename T>
void multiply_rounded(const TensorView& x, const TensorView& w, const TensorView& scales, const TensorView& sums,
                      const T* bias, const TensorView& out) {
  const int64_t rows = x.size(0), k = x.size(1), n = out.size(1), padded = (k + kBytes - 1) / kBytes * kBytes;
  std::vector<uint8_t> bytes(rows * padded);
  std::vector<float> row_scales(rows);
  parallel_for(0, rows, std::max<int64_t>(1, 32768 / k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      row_scales[r] = byte_row(x.as<T>() + r * x.stride(0), k, padded, bytes.data() + r * padded);
  });
  const float* scale = scales.as<float>();
  const int32_t* sum_of = sums.as<int32_t>();
  T* o = out.as<T>();
  const ByteScales<T> all_scales{row_scales.data(), scale, sum_of, bias};
  if (is_interleaved(w)) return multiply_interleaved_bytes<1>(bytes.data(), rows, padded, w, all_scales, out);
  if (fills_panels(rows, kPanelRows, kByteGain)) return multiply_byte_panels<1>(bytes.data(), rows, padded, w, all_scales, o);
  multiply_dots<ByteProducts>(
      bytes.data(), padded, rows, w.as<int8_t>(), n, k,
      [&](int64_t row, int count, int64_t column, int64_t columns, const int32_t* dots) {
        const __m512i whole = _mm512_sub_epi32(_mm512_loadu_si512(dots), taken_out(sum_of + column, columns));
        const __m512 of_rows = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), of_each_row(&row_scales[row], count));
        const __m512 scaled = _mm512_mul_ps(of_rows, for_each_row(scale + column, columns));
        const __m512 added = for_each_row(bias ? bias + column : nullptr, columns);
        store_sums(o + row * n + column, n, plus(scaled, added), count, columns);
      });
}

// w [n, k] int8 with scales [n]; sums [n] of its rows take the 32768 out again.
template <typename T>
void multiply_bytes(const TensorView& x, const TensorView& w, const TensorView& scales, const TensorView& sums,
                    const T* bias, const TensorView& out) {
  const int64_t rows = x.size(0), k = x.size(1), n = out.size(1), padded = (k + kBytes - 1) / kBytes * kBytes;
  std::vector<uint8_t> planes(2 * rows * padded);
  std::vector<float> row_scales(rows);
  const int64_t to_low = is_interleaved(w) ? padded : rows * padded, to_next = is_interleaved(w) ? 2 * padded : padded;
  uint8_t *high = planes.data(), *low = high + to_low;
  parallel_for(0, rows, std::max<int64_t>(1, 32768 / k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      row_scales[r] =
          split_row(x.as<T>() + r * x.stride(0), k, padded, high + r * to_next, low + r * to_next);
  });
  const int8_t* ws = w.as<int8_t>();
  const float* scale = scales.as<float>();
  const int32_t* sum_of = sums.as<int32_t>();
  T* o = out.as<T>();
  const ByteScales<T> all_scales{row_scales.data(), scale, sum_of, bias};
  if (is_interleaved(w)) return multiply_interleaved_bytes<2>(high, rows, padded, w, all_scales, out);
  if (fills_panels(rows, kPanelRows, kPlanesGain)) return multiply_byte_panels<2>(high, rows, padded, w, all_scales, o);
  parallel_for(0, (n + kColumns - 1) / kColumns, std::max<int64_t>(1, 65536 / k), [&](int64_t begin, int64_t end) {
    int32_t tops[kSumRows][kColumns] = {}, rests[kSumRows][kColumns] = {};
    const int64_t passes = (rows + 2) / 3;
    for (int64_t b = begin; b < end; ++b) {
      int64_t pass = 0;
      const int64_t column = b * kColumns, columns = std::min<int64_t>(kColumns, n - column);
      for (int64_t r = 0; r < rows;) {
        const int64_t left = rows - r;
        const int take = static_cast<int>(left == 4 ? 2 : std::min<int64_t>(3, left));
        const uint8_t *h = high + r * padded, *l = low + r * padded;
        if (rows <= 3)
          int8_lines(take, h, l, padded, ws + column * k, k, columns, tops, rests);
        else if (columns == kColumns)
          int8_rows<kColumns>(take, h, l, padded, ws + column * k, k,
                              Ahead::share(b + 1 < end ? ws + (column + kColumns) * k : nullptr, kColumns * k, pass++,
                                           passes, k / kBytes + 1),
                              tops, rests);
        else
          for (int64_t c = 0; c < columns; ++c) {
            int32_t top[kSumRows][kColumns], rest[kSumRows][kColumns];
            int8_rows<1>(take, h, l, padded, ws + (column + c) * k, k, {}, top, rest);
            for (int i = 0; i < take; ++i) tops[i][c] = top[i][0], rests[i][c] = rest[i][0];
          }
        const __m512 high_part = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(tops), taken_out(sum_of + column, columns)));
        const __m512 whole = _mm512_fmadd_ps(_mm512_set1_ps(256.f), high_part, _mm512_cvtepi32_ps(_mm512_loadu_si512(rests)));
        const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(whole, of_each_row(&row_scales[r], take)), for_each_row(scale + column, columns));
        store_sums(o + r * n + column, n, plus(scaled, for_each_row(bias ? bias + column : nullptr, columns)), take, columns);
        r += take;
      }
    }
  });
}

#endif

Features features() {
  constexpr bool kHasBytes = MILLM_INT8_DOT != 0;
  return {kLanes * 4, MILLM_BF16_DOT != 0, kHasBytes, MILLM_INT16_PAIRS != 0 && !kHasBytes, has_tiles()};
}

void interleave(const TensorView& weight) {
#if MILLM_BF16_DOT || MILLM_INT8_DOT
  interleave_rows(weight.as<char>(), weight.size(0) / kPanelRows, weight.size(1) * weight.element_size);
#else
  throw std::invalid_argument("no products with interleaved weights");
#endif
}

void multiply_rows(const TensorView& x, const TensorView& weight, const TensorView* bias, bool ordered,
                   const TensorView& out) {
  if (x.type == ScalarType::Float)
    return multiply_wide<float, float>(x, weight, nullptr, bias ? bias->as<float>() : nullptr, ordered, out);
  if (x.type == ScalarType::Half)
    return multiply_wide<Half, Half>(x, weight, nullptr, bias ? bias->as<Half>() : nullptr, ordered, out);
  const BFloat16* added = bias ? bias->as<BFloat16>() : nullptr;
#if MILLM_BF16_DOT
  if (is_interleaved(weight)) return multiply_interleaved_bf16(x, weight, added, out);
  multiply_bf16(x, weight, added, ordered, out);
#else
  multiply_wide<BFloat16, BFloat16>(x, weight, nullptr, added, ordered, out);
#endif
}

// With the processor's dot products of bytes all sums are exact, and always ordered.
void multiply_int8(const TensorView& x, const TensorView& weight, const TensorView& scales, const TensorView& sums,
                   const TensorView* bias, bool rounded, bool ordered, const TensorView& out) {
#if MILLM_INT8_DOT
  if (rounded) {
    MILLM_BY_TYPE(x, multiply_rounded<T>(x, weight, scales, sums, bias ? bias->as<T>() : nullptr, out));
    return;
  }
  MILLM_BY_TYPE(x, multiply_bytes<T>(x, weight, scales, sums, bias ? bias->as<T>() : nullptr, out));
#else
  MILLM_BY_TYPE(x, (multiply_wide<T, int8_t>(x, weight, scales.as<float>(), bias ? bias->as<T>() : nullptr, ordered,
                                             out)));
#endif
}

}  // namespace millm
