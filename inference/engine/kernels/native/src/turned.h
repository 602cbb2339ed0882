// Products of a few rows in the order of panels (panels.h), so that a result does not depend on the number of rows.
// Sixteen words of sixteen columns are turned in registers; each is multiplied with the same word of every row.
#pragma once

#include <vector>

#include "kernels.h"
#include "panels.h"
#include "transpose.h"
#include "vectors.h"

#if MILLM_BF16_DOT

namespace millm {

constexpr int kTurnedRows = 8;  // at most: their sums and the turned words fit the registers
constexpr int kTurnedColumns = 16;

// The sums of ROWS rows and sixteen columns, rows of `bytes` bytes.
template <typename How, int ROWS>
inline void turned_tile(const char* x, int64_t x_stride, const char* w, int64_t bytes, Ahead ahead,
                        typename How::Sums* out) {
  using Numbers = typename How::Numbers;
  typename How::Sums acc[ROWS];
  for (auto& a : acc) a = How::zero();
  const auto add = [&](int64_t at, __m512i column, int64_t left) {
    for (int r = 0; r < ROWS; ++r) acc[r] = How::add(acc[r], (Numbers)column, (Numbers)word_at(x + r * x_stride + at, left));
  };
  int64_t at = 0;
  for (; at + 64 <= bytes; at += 64) {
    ahead.step();
    unrolled<4>([&](auto quarter) {
      __m512i words[4];
      turn_words(w + at + 16 * quarter, bytes, words);
      unrolled<4>([&](auto i) { add(at + 16 * quarter + 4 * i, words[i], sizeof(Word)); });
    });
  }
  if (at < bytes) {
    const __mmask64 mask = (1ull << (bytes - at)) - 1;
    __m512i v[kTurnedColumns];
    for (int c = 0; c < kTurnedColumns; ++c) v[c] = _mm512_maskz_loadu_epi8(mask, w + c * bytes + at);
    transpose(v);
    for (int i = 0; at < bytes; ++i, at += 4) add(at, v[i], std::min<int64_t>(sizeof(Word), bytes - at));
  }
  for (int r = 0; r < ROWS; ++r) out[r] = acc[r];
}

// All of a product of up to kTurnedRows rows with w, n rows of `bytes` bytes; put(row, column, columns, sums) takes up to
// 16 columns of a row.
template <typename How, typename Put>
void multiply_turned(const char* x, int64_t x_stride, int64_t rows, const char* w, int64_t n, int64_t bytes, const Put& put) {
  const int64_t block = kTurnedColumns * bytes, blocks = (n + kTurnedColumns - 1) / kTurnedColumns;
  parallel_for(0, blocks, std::max<int64_t>(1, 262144 / block), [&](int64_t begin, int64_t end) {
    std::vector<char> padded;  // of columns that do not fill a block, with zeros behind them
    for (int64_t b = begin; b < end; ++b) {
      const int64_t column = b * kTurnedColumns, columns = std::min<int64_t>(kTurnedColumns, n - column);
      const char *weights = w + b * block, *next = b + 1 < end ? weights + block : nullptr;
      const Ahead ahead = Ahead::share(next, std::min(block, (n - column - kTurnedColumns) * bytes), 0, 1, bytes / 64 + 1);
      if (columns < kTurnedColumns) {
        padded.resize(block);
        std::memcpy(padded.data(), weights, columns * bytes);
        weights = padded.data();
      }
      typename How::Sums sums[kTurnedRows];
      unrolled<kTurnedRows>([&](auto i) {
        if (i + 1 == rows) turned_tile<How, i + 1>(x, x_stride, weights, bytes, ahead, sums);
      });
      for (int64_t r = 0; r < rows; ++r) put(r, column, columns, sums[r]);
    }
  });
}

}  // namespace millm

#endif
