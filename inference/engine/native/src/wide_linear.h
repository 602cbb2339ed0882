// Products of a few rows with row-major weights of 16 or 8 bits, widened to float32 on the way: for processors without
// the dot products of linear.h, and for float16. A row of activations is widened once.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <type_traits>
#include <vector>

#include "linear.h"
#include "vectors.h"

namespace millm {

// Sums in flight: they, the columns' weights and one row of activations fill 16 registers, or 32 of AVX-512.
constexpr int kWideRows = 6;
constexpr int kWideColumns = kLanes == 16 ? 4 : 2;
constexpr int64_t kLineAhead = 4096;  // bytes

// How weights are widened: kStep of them at once, the v-th vector of which meets the activations that `place` puts there.
template <typename W>
struct Widening {
  static constexpr int kVectors = 1;
  static constexpr int64_t kStep = kLanes;
  static Vec take(const W* p, int) { return load(p); }
  static int64_t place(int64_t i) { return i; }
};

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
// bfloat16 is the upper half of a float32: one shift makes floats of the even ones, two of the odd ones (a mask would
// take a register, of which AVX2 has too few).
template <>
struct Widening<at::BFloat16> {
  static constexpr int kVectors = 2;
  static constexpr int64_t kStep = 2 * kLanes;
  static Vec take(const at::BFloat16* p, int v) {
#if defined(CPU_CAPABILITY_AVX512)
    const __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(v ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(pairs, 16));
#else
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v ? _mm256_srli_epi32(pairs, 16) : pairs, 16));
#endif
  }
  static int64_t place(int64_t i) { return i / kStep * kStep + i % 2 * kLanes + i % kStep / 2; }
};
#endif

// The last weights of a row, zeros behind them.
template <typename W>
struct Ending {
  W weights[Widening<W>::kStep] = {};
  Ending(const W* p, int64_t count) { std::copy(p, p + count, weights); }
};

// kWideColumns rows of the weight from the same place on; those behind the last one repeat it.
template <typename W>
struct Columns {
  const W* at[kWideColumns];
  Columns(const W* w, int64_t stride, int64_t count) {
    for (int64_t c = 0; c < kWideColumns; ++c) at[c] = w + std::min(c, count - 1) * stride;
  }
};

// Asks for the next columns while the present ones are computed.
template <typename W>
inline void fetch(const Columns<W>& next, int64_t count) {
  for (const W* column : next.at)
    for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(W))) __builtin_prefetch(column + i);
}

#if defined(CPU_CAPABILITY_AVX512)
using Lanes = __m512;
#elif defined(CPU_CAPABILITY_AVX2)
using Lanes = __m256;
#else
using Lanes = Vec;
#endif

// The compiler would rather load a row anew for each product: more than the processor can load meanwhile.
inline Lanes in_register(Lanes v) {
#if defined(CPU_CAPABILITY_AVX2) && defined(__GNUC__)
  __asm__("" : "+x"(v));
#endif
  return v;
}

template <int ROWS, typename W>
inline __attribute__((always_inline)) void wide_step(Lanes (&acc)[ROWS][kWideColumns], const float* x, int64_t x_stride,
                                                     const W* const (&w)[kWideColumns]) {
  using How = Widening<W>;
  for (int v = 0; v < How::kVectors; ++v) {
    Lanes columns[kWideColumns];
    for (int c = 0; c < kWideColumns; ++c) columns[c] = How::take(w[c], v);
    for (int r = 0; r < ROWS; ++r) {
      const Lanes row = in_register(Vec::loadu(x + r * x_stride + v * kLanes));
      for (int c = 0; c < kWideColumns; ++c) acc[r][c] = at::vec::fmadd(Vec(row), Vec(columns[c]), Vec(acc[r][c]));
    }
  }
}

// ROWS x kWideColumns sums over k numbers; x is padded with zeros to whole steps. Row after row in `out`.
template <int ROWS, typename W>
__attribute__((noinline)) void wide_tile(const float* x, int64_t x_stride, const Columns<W>& w, int64_t k, float* out) {
  constexpr int64_t kStep = Widening<W>::kStep;
  Lanes acc[ROWS][kWideColumns];
  for (auto& row : acc)
    for (auto& a : row) a = Vec(0.f);
  const W* at[kWideColumns];
  for (int c = 0; c < kWideColumns; ++c) at[c] = w.at[c];
  int64_t left = k;
  for (; left >= kStep; left -= kStep, x += kStep) {
    wide_step<ROWS, W>(acc, x, x_stride, at);
    for (auto& column : at) column += kStep;
  }
  if (left > 0) {
    W ends[kWideColumns][kStep] = {};
    for (int c = 0; c < kWideColumns; ++c) {
      std::copy(at[c], at[c] + left, ends[c]);
      at[c] = ends[c];
    }
    wide_step<ROWS, W>(acc, x, x_stride, at);
  }
  constexpr int kSums = ROWS * kWideColumns, kFours = kSums / 4 * 4;
  const auto lane = [&](int s) { return Vec(acc[s / kWideColumns][s % kWideColumns]); };
  for (int s = 0; s < kFours; s += 4) four_sums(lane(s), lane(s + 1), lane(s + 2), lane(s + 3), out + s);
  for (int s = kFours; s < kSums; ++s) out[s] = sum(lane(s));
}

template <typename W>
inline void wide_tile(int rows, const float* x, int64_t x_stride, const Columns<W>& w, int64_t k, float* out) {
  switch (rows) {
    case 1: return wide_tile<1>(x, x_stride, w, k, out);
    case 2: return wide_tile<2>(x, x_stride, w, k, out);
    case 3: return wide_tile<3>(x, x_stride, w, k, out);
    case 4: return wide_tile<4>(x, x_stride, w, k, out);
    case 5: return wide_tile<5>(x, x_stride, w, k, out);
    default: return wide_tile<kWideRows>(x, x_stride, w, k, out);
  }
}

// One row of the weight in a straight line, which the processor fetches ahead best: for one or two rows. A step takes a
// cache line of weights at least, so that none is asked for twice; the compiler keeps sums in registers that are not Vec.
template <int ROWS, typename W>
inline void wide_line(const float* x, int64_t x_stride, const W* w, int64_t k, float* out) {
  using How = Widening<W>;
  constexpr int kSums = 4;
  constexpr int kParts = std::max<int>(kSums, 64 / (sizeof(W) * kLanes));
  constexpr int64_t kSpan = kParts / How::kVectors * How::kStep;
  Lanes acc[ROWS][kSums];
  for (auto& row : acc)
    for (auto& a : row) a = Vec(0.f);
  const float* const end = x + k / kSpan * kSpan;
  for (; x != end; x += kSpan, w += kSpan) {
    for (int64_t byte = 0; byte < kSpan * static_cast<int64_t>(sizeof(W)); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(w) + kLineAhead + byte);
    for (int p = 0; p < kParts; ++p) {
      const Vec column = How::take(w + p / How::kVectors * How::kStep, p % How::kVectors);
      for (int r = 0; r < ROWS; ++r)
        acc[r][p % kSums] = at::vec::fmadd(Vec::loadu(x + r * x_stride + p * kLanes), column, Vec(acc[r][p % kSums]));
    }
  }
  for (int r = 0; r < ROWS; ++r)
    out[r] = sum((Vec(acc[r][0]) + Vec(acc[r][1])) + (Vec(acc[r][2]) + Vec(acc[r][3])));
  for (int64_t left = k % kSpan; left > 0; left -= How::kStep, x += How::kStep, w += How::kStep) {
    const Ending<W> ending(w, std::min(How::kStep, left));
    for (int v = 0; v < How::kVectors; ++v)
      for (int r = 0; r < ROWS; ++r)
        out[r] += sum(Vec::loadu(x + r * x_stride + v * kLanes) * How::take(ending.weights, v));
  }
}

// Rows of x as float32, in the order in which weights of type W come, with zeros behind them up to whole steps. They
// lie in blocks of kBlock numbers of every row, one behind the other: rows whole would stand at the same few places of
// the nearest cache when their length is a power of two.
template <typename W>
struct Widened {
  static constexpr int64_t kBlock = 512;
  static_assert(kBlock % Widening<W>::kStep == 0);
  int64_t rows, padded;
  std::vector<float> numbers;

  template <typename T>
  static Widened of(const at::Tensor& x) {
    constexpr int64_t kStep = Widening<W>::kStep;
    const int64_t rows = x.size(0), k = x.size(1), padded = (k + kStep - 1) / kStep * kStep;
    Widened wide{rows, padded, std::vector<float>(rows * padded)};
    at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / k), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x.const_data_ptr<T>() + r * x.stride(0);
        for (int64_t from = 0; from < k; from += kBlock) {
          float* to = wide.numbers.data() + rows * from + r * wide.width(from);
          const int64_t count = std::min(kBlock, k - from);
          for (int64_t i = 0; i < count; ++i) to[Widening<W>::place(i)] = static_cast<float>(row[from + i]);
        }
      }
    });
    return wide;
  }

  // Of the block that starts at number `from` of each row.
  int64_t width(int64_t from) const { return std::min(kBlock, padded - from); }
  const float* block(int64_t from, int64_t row) const { return numbers.data() + rows * from + row * width(from); }
};

// What becomes of sums: scaled, biased and rounded into row-major `out`.
template <typename T>
struct Put {
  T* out;
  int64_t n;
  const float* scales;
  const T* bias;

  void operator()(int64_t row, int64_t column, float value) const {
    if (scales) value *= scales[column];
    out[row * n + column] = static_cast<T>(value + (bias ? static_cast<float>(bias[column]) : 0.f));
  }

  // `count` columns from `first` on.
  void operator()(int64_t row, int64_t first, int64_t count, const float* values) const {
    int64_t c = 0;
    if constexpr (!std::is_same_v<T, float>)
      for (; c + 2 * kLanes <= count; c += 2 * kLanes)
        at::vec::convert_from_float<T>(finished(first + c, values + c), finished(first + c + kLanes, values + c + kLanes))
            .store(out + row * n + first + c);
    for (; c < count; ++c) (*this)(row, first + c, values[c]);
  }

  Vec finished(int64_t column, const float* values) const {
    Vec some = Vec::loadu(values);
    if (scales) some = some * Vec::loadu(scales + column);
    return bias ? some + load(bias + column) : some;
  }
};

// One or two rows: the weights' way through memory is all that counts.
template <typename T, typename W>
void multiply_wide_lines(const at::Tensor& x, const at::Tensor& w, const Put<T>& put) {
  constexpr int64_t kStep = Widening<W>::kStep;
  const int64_t rows = x.size(0), k = w.size(1), n = w.size(0), padded = (k + kStep - 1) / kStep * kStep;
  std::vector<float> wide(rows * padded);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < k; ++i)
      wide[r * padded + Widening<W>::place(i)] = static_cast<float>(x.const_data_ptr<T>()[r * x.stride(0) + i]);
  const W* ws = w.const_data_ptr<W>();
  at::parallel_for(0, n, std::max<int64_t>(1, 262144 / k), [&](int64_t begin, int64_t end) {
    float two[2];
    for (int64_t column = begin; column < end; ++column) {
      if (rows == 2)
        wide_line<2>(wide.data(), padded, ws + column * k, k, two);
      else
        wide_line<1>(wide.data(), padded, ws + column * k, k, two);
      for (int64_t r = 0; r < rows; ++r) put(r, column, two[r]);
    }
  });
}

// Sums of up to kColumnsAtOnce columns from `first` on, for all rows: block after block of x, as many rows of it at a
// time as the nearest cache holds, so that each of them meets every column there. sums[tile of columns][row][column].
template <typename W>
void wide_sums(const Widened<W>& x, const W* w, int64_t k, int64_t first, int64_t columns, float* sums) {
  constexpr int64_t kRowsAtOnce = 2 * kWideRows;
  float tile[kWideRows * kWideColumns];
  for (int64_t from = 0; from < k; from += Widened<W>::kBlock) {
    const int64_t count = std::min(Widened<W>::kBlock, k - from);
    for (int64_t top = 0; top < x.rows; top += kRowsAtOnce) {
      const int64_t bottom = std::min(x.rows, top + kRowsAtOnce);
      for (int64_t c = 0; c < columns; c += kWideColumns) {
        const W* at = w + (first + c) * k + from;
        const int64_t left = columns - c;
        if (top == 0 && left > kWideColumns) fetch(Columns<W>(at + kWideColumns * k, k, left - kWideColumns), count);
        for (int64_t r = top; r < bottom; r += kWideRows) {
          const int64_t take = std::min<int64_t>(kWideRows, bottom - r);
          wide_tile(static_cast<int>(take), x.block(from, r), x.width(from), Columns<W>(at, k, left), count, tile);
          float* to = sums + c * x.rows + r * kWideColumns;
          for (int64_t s = 0; s < take * kWideColumns; ++s) to[s] = from ? to[s] + tile[s] : tile[s];
        }
      }
    }
  }
}

// w [n, k]; scales [n] multiply its rows where they are given.
template <typename T, typename W>
void multiply_wide(const at::Tensor& x, const at::Tensor& w, const float* scales, const T* bias, at::Tensor& out) {
  constexpr int64_t kColumnsAtOnce = 48;
  static_assert(kColumnsAtOnce % kWideColumns == 0);
  const int64_t rows = x.size(0), k = w.size(1), n = w.size(0);
  const Put<T> put{out.mutable_data_ptr<T>(), n, scales, bias};
  if (rows <= 2) return multiply_wide_lines<T, W>(x, w, put);
  const Widened<W> wide = Widened<W>::template of<T>(x);
  at::parallel_for(0, (n + kColumnsAtOnce - 1) / kColumnsAtOnce, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(rows * kColumnsAtOnce);
    float line[kColumnsAtOnce];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kColumnsAtOnce, columns = std::min(kColumnsAtOnce, n - first);
      wide_sums(wide, w.const_data_ptr<W>(), k, first, columns, sums.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; c += kWideColumns)
          std::copy_n(sums.data() + c * rows + r * kWideColumns, kWideColumns, line + c);
        put(r, first, columns, line);
      }
    }
  });
}

}  // namespace millm
