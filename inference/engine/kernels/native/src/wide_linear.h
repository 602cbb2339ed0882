// Products of a few rows with row-major weights of 16 or 8 bits, widened on the way: for processors without the dot
// products of linear.cpp, and for float16. A row of activations is widened once.
#pragma once

#include <type_traits>
#include <vector>

#include "wide_panels.h"
#include "widening.h"

namespace millm {

// Sums in flight: they, the columns' weights and one row of activations fill 16 registers, or 32 of AVX-512.
constexpr int kWideRows = 6;
constexpr int kWideColumns = kLanes == 16 ? 4 : 2;
constexpr int64_t kLineAhead = 2048;  // bytes
constexpr int64_t kSumBlock = 1024;   // numbers of a row that are summed before their sum is added to the others

// COLUMNS rows of the weight from the same place on; those behind the last one repeat it.
template <typename W, int COLUMNS = kWideColumns>
struct Columns {
  const W* at[COLUMNS];
  Columns(const W* w, int64_t stride, int64_t count) {
    for (int64_t c = 0; c < COLUMNS; ++c) at[c] = w + std::min(c, count - 1) * stride;
  }
};

// The compiler would rather load a row anew for each product: more than the processor can load meanwhile.
template <typename V>
inline V in_register(V v) {
#if defined(CPU_CAPABILITY_AVX2) && defined(__GNUC__)
  __asm__("" : "+x"(v));
#endif
  return v;
}

template <int ROWS, typename W, int COLUMNS>
inline __attribute__((always_inline)) void wide_step(typename Widening<W>::Sums (&acc)[ROWS][COLUMNS],
                                                     const typename Widening<W>::Number* x, int64_t x_stride,
                                                     const W* const (&w)[COLUMNS]) {
  using How = Widening<W>;
  for (int v = 0; v < How::kVectors; ++v) {
    typename How::Numbers columns[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) columns[c] = How::take(w[c], v);
    for (int r = 0; r < ROWS; ++r) {
      const auto row = in_register(How::read(x + r * x_stride + v * How::kWidth));
      for (int c = 0; c < COLUMNS; ++c) acc[r][c] = How::add(acc[r][c], row, columns[c]);
    }
  }
}

// ROWS x COLUMNS sums over k numbers, kMost of them at most; x is padded with zeros to whole steps. Row after row in
// `out`. Each sum goes over its numbers in the same order, whatever ROWS and COLUMNS are. With AHEAD, the weights
// `ahead` numbers further are fetched meanwhile.
template <int ROWS, typename W, int COLUMNS = kWideColumns, bool AHEAD = false>
__attribute__((noinline)) void wide_tile(const typename Widening<W>::Number* x, int64_t x_stride,
                                         const Columns<W, COLUMNS>& w, int64_t k, float* out, int64_t ahead = 0) {
  using How = Widening<W>;
  constexpr int64_t kStep = How::kStep;
  typename How::Sums acc[ROWS][COLUMNS];
  for (auto& row : acc)
    for (auto& a : row) a = How::zero();
  const W* at[COLUMNS];
  for (int c = 0; c < COLUMNS; ++c) at[c] = w.at[c];
  int64_t left = k;
  if constexpr (AHEAD) {
    constexpr int64_t kLine = std::max<int64_t>(kStep, 64 / static_cast<int64_t>(sizeof(W)));  // a cache line
    for (; left >= kLine; left -= kLine) {
      for (const W* column : at) fetch_ahead(column + ahead);
      unrolled<static_cast<int>(kLine / kStep)>([&](auto) {
        wide_step<ROWS, W>(acc, x, x_stride, at);
        for (auto& column : at) column += kStep;
        x += kStep;
      });
    }
  }
  for (; left >= kStep; left -= kStep, x += kStep) {
    wide_step<ROWS, W>(acc, x, x_stride, at);
    for (auto& column : at) column += kStep;
  }
  if (left > 0) {
    W ends[COLUMNS][kStep] = {};
    for (int c = 0; c < COLUMNS; ++c) {
      std::copy(at[c], at[c] + left, ends[c]);
      at[c] = ends[c];
    }
    wide_step<ROWS, W>(acc, x, x_stride, at);
  }
  constexpr int kSums = ROWS * COLUMNS, kFours = kSums / 4 * 4;
  const auto lane = [&](int s) { return How::floats(acc[s / COLUMNS][s % COLUMNS]); };
  for (int s = 0; s < kFours; s += 4) four_sums(lane(s), lane(s + 1), lane(s + 2), lane(s + 3), out + s);
  if constexpr (kFours < kSums) {  // in the same order as the others
    constexpr int kLast = kSums - 1;
    float rest[4];
    four_sums(lane(kFours), lane(std::min(kFours + 1, kLast)), lane(std::min(kFours + 2, kLast)), lane(kLast), rest);
    std::copy(rest, rest + kSums - kFours, out + kFours);
  }
}

template <typename W, bool AHEAD>
inline void wide_rows(int rows, const typename Widening<W>::Number* x, int64_t x_stride, const Columns<W>& w, int64_t k,
                      float* out, int64_t ahead) {
  switch (rows) {
    case 1: return wide_tile<1, W, kWideColumns, AHEAD>(x, x_stride, w, k, out, ahead);
    case 2: return wide_tile<2, W, kWideColumns, AHEAD>(x, x_stride, w, k, out, ahead);
    case 3: return wide_tile<3, W, kWideColumns, AHEAD>(x, x_stride, w, k, out, ahead);
    case 4: return wide_tile<4, W, kWideColumns, AHEAD>(x, x_stride, w, k, out, ahead);
    case 5: return wide_tile<5, W, kWideColumns, AHEAD>(x, x_stride, w, k, out, ahead);
    default: return wide_tile<kWideRows, W, kWideColumns, AHEAD>(x, x_stride, w, k, out, ahead);
  }
}

// One row of the weight in a straight line, which the processor fetches ahead best: for one or two rows, and kMost
// numbers at most. A step takes a cache line of weights at least, so that none is asked for twice; the compiler keeps
// sums in registers that are not Vec. Adds to `out`.
template <int ROWS, typename W>
inline void wide_line(const typename Widening<W>::Number* x, int64_t x_stride, const W* w, int64_t k, float* out) {
  using How = Widening<W>;
  constexpr int kSums = ROWS == 1 ? 8 : 4;  // more than the sums' latency needs, to catch up after a wait for memory
  constexpr int kParts = std::max<int>(kSums, 64 / (sizeof(W) * How::kWidth));
  constexpr int64_t kSpan = kParts / How::kVectors * How::kStep;
  typename How::Sums acc[ROWS][kSums];
  for (auto& row : acc)
    for (auto& a : row) a = How::zero();
  const auto* const end = x + k / kSpan * kSpan;
  for (; x != end; x += kSpan, w += kSpan) {
    for (int64_t byte = 0; byte < kSpan * static_cast<int64_t>(sizeof(W)); byte += 64)
      fetch_ahead(reinterpret_cast<const char*>(w) + kLineAhead + byte);
    unrolled<kParts>([&](auto p) {
      const auto column = How::take(w + p / How::kVectors * How::kStep, p % How::kVectors);
      unrolled<ROWS>([&](auto r) {
        acc[r][p % kSums] = How::add(acc[r][p % kSums], How::read(x + r * x_stride + p * How::kWidth), column);
      });
    });
  }
  for (int64_t left = k % kSpan; left > 0; left -= How::kStep, x += How::kStep, w += How::kStep) {
    const Ending<W> ending(w, std::min(How::kStep, left));
    for (int v = 0; v < How::kVectors; ++v)
      for (int r = 0; r < ROWS; ++r)
        acc[r][v] = How::add(acc[r][v], How::read(x + r * x_stride + v * How::kWidth), How::take(ending.weights, v));
  }
  for (int r = 0; r < ROWS; ++r) {
    const auto two = [&](int a) { return How::floats(acc[r][a]) + How::floats(acc[r][a + 1]); };
    Vec all = two(0) + two(2);
    if constexpr (kSums == 8) all = all + (two(4) + two(6));
    out[r] += sum(all);
  }
}

// Rows of x beside weights of type W. They lie in blocks of kBlock numbers of every row, one behind the other: rows
// whole would stand at the same few places of the nearest cache when their length is a power of two.
template <typename W>
struct Widened {
  using Number = typename Widening<W>::Number;
  static constexpr int64_t kBlock = kSumBlock;
  static_assert(kBlock % Widening<W>::kStep == 0 && kBlock <= Widening<W>::kMost);
  int64_t rows, padded;
  std::vector<Number> numbers;
  std::vector<float> scales;  // of rows

  template <typename T>
  static Widened of(const TensorView& x) {
    constexpr int64_t kStep = Widening<W>::kStep;
    const int64_t rows = x.size(0), k = x.size(1), padded = (k + kStep - 1) / kStep * kStep;
    Widened wide{rows, padded, std::vector<Number>(rows * padded), std::vector<float>(rows)};
    parallel_for(0, rows, std::max<int64_t>(1, 32768 / k), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const WideRow<T, W> row(x.as<T>() + r * x.stride(0), k);
        wide.scales[r] = row.scale;
        for (int64_t from = 0; from < padded; from += kBlock)
          row.put(from, wide.width(from), wide.numbers.data() + rows * from + r * wide.width(from));
      }
    });
    return wide;
  }

  // Of the block that starts at number `from` of each row.
  int64_t width(int64_t from) const { return std::min(kBlock, padded - from); }
  const Number* block(int64_t from, int64_t row) const { return numbers.data() + rows * from + row * width(from); }
};

// One or two rows: the weights' way through memory is all that counts.
template <typename T, typename W>
void multiply_wide_lines(const TensorView& x, const TensorView& w, const Put<T>& put) {
  using How = Widening<W>;
  const int64_t rows = x.size(0), k = w.size(1), n = w.size(0), padded = (k + How::kStep - 1) / How::kStep * How::kStep;
  std::vector<typename How::Number> wide(rows * padded);
  float scales[2];
  for (int64_t r = 0; r < rows; ++r) {
    const WideRow<T, W> row(x.as<T>() + r * x.stride(0), k);
    row.put(0, padded, wide.data() + r * padded);
    scales[r] = row.scale;
  }
  const W* ws = w.as<W>();
  parallel_for(0, n, std::max<int64_t>(1, 262144 / k), [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      float two[2] = {};
      for (int64_t from = 0; from < k; from += std::min(How::kMost, k)) {
        const int64_t count = std::min(How::kMost, k - from);
        if (rows == 2)
          wide_line<2>(wide.data() + from, padded, ws + column * k + from, count, two);
        else
          wide_line<1>(wide.data() + from, padded, ws + column * k + from, count, two);
      }
      for (int64_t r = 0; r < rows; ++r) put(r, scales[r], column, 1, two + r);
    }
  });
}

// The same in the order of wide_tile, which the sums of more rows have: several columns side by side, because a column
// has only one sum at a time.
template <int ROWS, typename T, typename W>
void multiply_ordered_lines(const TensorView& x, const TensorView& w, const Put<T>& put) {
  using How = Widening<W>;
  constexpr int kSide = 8 / ROWS;
  const int64_t k = w.size(1), n = w.size(0), padded = (k + How::kStep - 1) / How::kStep * How::kStep;
  std::vector<typename How::Number> wide(ROWS * padded);
  float scales[ROWS];
  for (int64_t r = 0; r < ROWS; ++r) {
    const WideRow<T, W> row(x.as<T>() + r * x.stride(0), k);
    row.put(0, padded, wide.data() + r * padded);
    scales[r] = row.scale;
  }
  const W* ws = w.as<W>();
  parallel_for(0, (n + kSide - 1) / kSide, std::max<int64_t>(1, 262144 / k / kSide), [&](int64_t begin, int64_t end) {
    float sums[ROWS * kSide], block[ROWS * kSide];
    for (int64_t first = begin * kSide; first < std::min(n, end * kSide); first += kSide) {
      const int64_t columns = std::min<int64_t>(kSide, n - first);
      for (int64_t from = 0; from < k; from += kSumBlock) {
        const int64_t count = std::min(kSumBlock, k - from);
        const Columns<W, kSide> at(ws + first * k + from, k, columns);
        wide_tile<ROWS, W, kSide, true>(wide.data() + from, padded, at, count, from ? block : sums, kSide * k);
        for (int s = 0; from && s < ROWS * kSide; ++s) sums[s] += block[s];
      }
      for (int r = 0; r < ROWS; ++r) put(r, scales[r], first, columns, sums + r * kSide);
    }
  });
}

// Sums of up to kColumnsAtOnce columns from `first` on, for all rows: block after block of x, a tile's rows of it at a
// time, which meet every column in the nearest cache. The rows are shared out evenly: a tile of few has too few sums for
// their latency. sums[tile of columns][row][column].
template <typename W>
void wide_sums(const Widened<W>& x, const W* w, int64_t k, int64_t first, int64_t columns, float* sums) {
  const int64_t groups = (x.rows + kWideRows - 1) / kWideRows;
  float tile[kWideRows * kWideColumns];
  for (int64_t from = 0; from < k; from += Widened<W>::kBlock) {
    const int64_t count = std::min(Widened<W>::kBlock, k - from);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t top = x.rows * group / groups, take = x.rows * (group + 1) / groups - top;
      for (int64_t c = 0; c < columns; c += kWideColumns) {
        const W* at = w + (first + c) * k + from;
        const int64_t left = columns - c;
        const Columns<W> tiled(at, k, left);
        const int count_of_rows = static_cast<int>(take);
        if (group == 0)
          wide_rows<W, true>(count_of_rows, x.block(from, top), x.width(from), tiled, count, tile, kWideColumns * k);
        else
          wide_rows<W, false>(count_of_rows, x.block(from, top), x.width(from), tiled, count, tile, 0);
        float* to = sums + c * x.rows + top * kWideColumns;
        for (int64_t s = 0; s < take * kWideColumns; ++s) to[s] = from ? to[s] + tile[s] : tile[s];
      }
    }
  }
}

// w [n, k]; scales [n] multiply its rows where they are given. Ordered: the sums of a row do not depend on the number of
// rows, which those of three and more rows never do.
template <typename T, typename W>
void multiply_wide(const TensorView& x, const TensorView& w, const float* scales, const T* bias, bool ordered,
                   const TensorView& out) {
  constexpr int64_t kColumnsAtOnce = 48;
  static_assert(kColumnsAtOnce % kWideColumns == 0);
  const int64_t rows = x.size(0), k = w.size(1), n = w.size(0);
  const Put<T> put{out.as<T>(), n, scales, bias};
  if (ordered && rows == 1) return multiply_ordered_lines<1, T, W>(x, w, put);
  if (ordered && rows == 2) return multiply_ordered_lines<2, T, W>(x, w, put);
  if (rows <= 2) return multiply_wide_lines<T, W>(x, w, put);
#if MILLM_INT16_PAIRS
  if constexpr (std::is_same_v<W, int8_t>)
    if (!ordered && prefers_wide_panels(rows)) return multiply_wide_panels(x, w, put);
#endif
  const Widened<W> wide = Widened<W>::template of<T>(x);
  parallel_for(0, (n + kColumnsAtOnce - 1) / kColumnsAtOnce, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(rows * kColumnsAtOnce);
    float line[kColumnsAtOnce];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kColumnsAtOnce, columns = std::min(kColumnsAtOnce, n - first);
      wide_sums(wide, w.as<W>(), k, first, columns, sums.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; c += kWideColumns)
          std::copy_n(sums.data() + c * rows + r * kWideColumns, kWideColumns, line + c);
        put(r, wide.scales[r], first, columns, line);
      }
    }
  });
}

}  // namespace millm
