// Products of many rows, bound by arithmetic. Sixteen rows of activations lie side by side in a panel, word by word
// (two bfloat16 numbers or four bytes). A word of the weight is multiplied with all of them, so no lanes are added up.
#pragma once

#include <atomic>

#include "kernels.h"
#include "transpose.h"
#include "vectors.h"

#if MILLM_BF16_DOT || MILLM_INT8_DOT

namespace millm {

using Word = int32_t;
constexpr int kPanelRows = 16;
constexpr int kTileColumns = 8;
constexpr int kBlockColumns = 16;           // columns whose results are turned into rows together
constexpr int64_t kPanelBytes = 600 << 10;  // of panels that stay in the second cache
constexpr int64_t kTakenBytes = 768 << 10;  // of columns that stay there with them

// Calls work(from, to) for parts of 0 .. count, at most `taken` at a time. Each thread begins in a range of its own,
// part after part, and then helps the others, so that one that is held up does not hold up the others.
template <typename Work>
void share_out(int64_t count, int64_t taken, const Work& work) {
  const int64_t threads = num_threads(), range = (count + threads - 1) / threads;
  const auto next = std::make_unique<std::atomic<int64_t>[]>(threads);
  for (int64_t i = 0; i < threads; ++i) next[i] = i * range;
  parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t other = 0; other < threads; ++other) {
        const int64_t owner = (i + other) % threads, last = std::min(count, (owner + 1) * range);
        for (int64_t from = next[owner].fetch_add(taken); from < last; from = next[owner].fetch_add(taken))
          work(from, std::min(last, from + taken));
      }
  });
}

// Puts the results of a row for BLOCKS times sixteen columns, side by side: sum_of(plane, block) are their sums.
// STREAMS: past the caches, to whole cache lines.
template <typename How, int PLANES, int BLOCKS, bool STREAMS = false, typename Sum, typename T, typename Finish>
inline __attribute__((always_inline)) void put_row(int64_t row, int64_t column, const Sum& sum_of, const Finish& finish,
                                                   T* to) {
  const auto result = [&](int b) {
    typename How::Sums of_planes[PLANES];
    for (int p = 0; p < PLANES; ++p) of_planes[p] = sum_of(p, b);
    return finish(row, column + b * kPanelRows, of_planes);
  };
  int b = 0;
  for (; b + 2 <= BLOCKS; b += 2) {
    if constexpr (STREAMS)
      stream_pair(to + b * kPanelRows, result(b), result(b + 1));
    else
      store_pair(to + b * kPanelRows, result(b), result(b + 1));
  }
  if (b < BLOCKS) store(to + b * kPanelRows, Vec(result(b)), kPanelRows);
}

// The panel [words, 16] of up to 16 rows of `bytes` bytes, `stride` bytes apart; zeros behind the last byte and row.
inline void fill_panel(const void* rows, int64_t stride, int64_t count, int64_t bytes, Word* panel) {
  const char* first = static_cast<const char*>(rows);
  for (int64_t at = 0; at < bytes; at += 64) {
    const int64_t left = std::min<int64_t>(64, bytes - at), words = (left + 3) / 4;
    const __mmask64 mask = left == 64 ? ~0ull : (1ull << left) - 1;
    __m512i v[kPanelRows];
    for (int r = 0; r < kPanelRows; ++r)
      v[r] = r < count ? _mm512_maskz_loadu_epi8(mask, first + r * stride + at) : _mm512_setzero_si512();
    transpose(v);
    for (int64_t i = 0; i < words; ++i) _mm512_store_si512(panel + (at / 4 + i) * kPanelRows, v[i]);
  }
}

// A word of the weight, for all rows; the last one of a row may have fewer bytes.
inline __m512i word_at(const char* p, int64_t bytes = sizeof(Word)) {
  Word word = 0;
  std::memcpy(&word, p, bytes);
  return _mm512_set1_epi32(word);
}

// The sums of PANELS x COLUMNS over rows of `bytes` bytes of the weight.
template <typename How, int PANELS, int COLUMNS>
inline void panel_tile(const Word* x, int64_t panel_words, const char* w, int64_t bytes, Ahead ahead,
                       typename How::Sums (*out)[PANELS]) {
  using Numbers = typename How::Numbers;
  typename How::Sums acc[COLUMNS][PANELS];
  for (auto& column : acc)
    for (auto& a : column) a = How::zero();
  // Four columns from one pointer: pointers for all of them would not fit into the registers.
  const char *front = w, *back = w + 4 * bytes;
  const Word* panel[PANELS];
  for (int p = 0; p < PANELS; ++p) panel[p] = x + p * panel_words;
  int64_t at = 0;
  for (; at + 4 <= bytes; at += 4, front += 4, back += 4) {
    if (at % 64 == 0) ahead.step();
    Numbers rows[PANELS];
    for (int p = 0; p < PANELS; ++p) {
      asm("" : "+r"(panel[p]));
      rows[p] = (Numbers)_mm512_load_si512(panel[p]);
      panel[p] += kPanelRows;
    }
    asm("" : "+r"(front), "+r"(back));
    for (int c = 0; c < COLUMNS; ++c) {
      const auto word = (Numbers)word_at(c < 4 ? front + c * bytes : back + (c - 4) * bytes);
      for (int p = 0; p < PANELS; ++p) acc[c][p] = How::add(acc[c][p], rows[p], word);
    }
  }
  if (at < bytes)
    for (int c = 0; c < COLUMNS; ++c) {
      const auto word = (Numbers)word_at(w + c * bytes + at, bytes - at);
      for (int p = 0; p < PANELS; ++p)
        acc[c][p] = How::add(acc[c][p], (Numbers)_mm512_load_si512(panel[p]), word);
    }
  for (int c = 0; c < COLUMNS; ++c)
    for (int p = 0; p < PANELS; ++p) out[c][p] = acc[c][p];
}

// One product in panels: x holds `panels` of them, w has n rows of `bytes` bytes.
struct PanelProduct {
  const Word* x;
  const char* w;
  int64_t rows, panels, n, bytes;

  int64_t panel_words() const { return (bytes + 3) / 4 * kPanelRows; }

  // The results of PANELS panels and a block of columns.
  template <typename How, int PANELS, int PLANES, typename T, typename Finish>
  void block(int64_t panel, int64_t column, Ahead (&ahead)[2], const Finish& finish, T* out) const {
    const int64_t columns = std::min<int64_t>(kBlockColumns, n - column), words = panel_words();
    const Word* at = x + panel * words;
    typename How::Sums sums[kBlockColumns][PANELS];
    int64_t c = 0;
    for (; c + kTileColumns <= columns; c += kTileColumns)
      panel_tile<How, PANELS, kTileColumns>(at, words, w + (column + c) * bytes, bytes, ahead[c > 0], sums + c);
    for (; c < columns; ++c) panel_tile<How, PANELS, 1>(at, words, w + (column + c) * bytes, bytes, {}, sums + c);
    put<How, PANELS, PLANES>(panel, column, columns, sums, finish, out);
  }

  // Turns the sums of up to 16 columns into results and those into rows.
  template <typename How, int PANELS, int PLANES, typename T, typename Finish>
  void put(int64_t panel, int64_t column, int64_t columns, const typename How::Sums (*sums)[PANELS],
           const Finish& finish, T* out) const {
    int64_t row = panel / PLANES * kPanelRows;
    for (int p = 0; p < PANELS; p += PLANES) {
      __m512i results[kPanelRows];
      turn<How>(row, column, columns, sums, p, finish, results);
      for (int r = 0; r < kPanelRows && row < rows; ++r, ++row)
        store(out + row * n + column, Vec(_mm512_castsi512_ps(results[r])), columns);
    }
  }

  template <typename How, int PANELS, typename Finish>
  static void turn(int64_t row, int64_t column, int64_t columns, const typename How::Sums (*sums)[PANELS], int p,
                   const Finish& finish, __m512i (&results)[kPanelRows]) {
    for (int64_t i = 0; i < kBlockColumns; ++i)
      results[i] = i < columns ? _mm512_castps_si512(finish(row, column + i, sums[i] + p)) : _mm512_setzero_si512();
    transpose(results);
  }
};

// x w^T of `rows` rows and a weight of n rows of `bytes` bytes. fill(panel, words) makes a panel: PLANES of them, next
// to each other, for each 16 rows. finish(row, column, sums) makes the results of 16 rows, from `row` on, of their sums
// in each plane.
template <typename How, int PLANES, typename T, typename Fill, typename Finish>
void multiply_panels(int64_t rows, const char* w, int64_t n, int64_t bytes, const Fill& fill, const Finish& finish,
                     T* out) {
  constexpr int64_t kMost = PLANES == 1 ? 3 : 2;  // panels at a time
  PanelProduct product{nullptr, w, rows, (rows + kPanelRows - 1) / kPanelRows * PLANES, n, bytes};
  const int64_t panels = product.panels, words = product.panel_words();
  const AlignedWords memory(panels * words);
  Word* x = memory.data();
  product.x = x;
  parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) fill(p, x + p * words);
  });
  const int64_t blocks = (n + kBlockColumns - 1) / kBlockColumns;
  const int64_t fitting = std::clamp<int64_t>(kTakenBytes / (kBlockColumns * bytes), 1, 8);
  const int64_t taken = std::clamp<int64_t>(blocks / (num_threads() * 4), 1, fitting);
  const int64_t kept = std::max<int64_t>(1, kPanelBytes / (kMost * words * 4)) * kMost;
  share_out(blocks, taken, [&](int64_t from, int64_t to) {
    for (int64_t start = 0; start < panels; start += kept)
      for (int64_t b = from; b < to; ++b) {
        const int64_t end = std::min(panels, start + kept);
        const int64_t following = (b + 1 < to || end == panels ? b + 1 : from) * kBlockColumns, left = n - following;
        const char* fetched = left > 0 ? w + following * bytes : nullptr;
        const int64_t passes = 2 * ((end - start + kMost - 1) / kMost);
        int64_t pass = 0;
        for (int64_t p = start; p < end;) {
          Ahead ahead[2];
          for (auto& a : ahead)
            a = Ahead::share(fetched, std::min<int64_t>(kBlockColumns, left) * bytes, pass++, passes, bytes / 64 + 1);
          const int64_t column = b * kBlockColumns, more = end - p;
          if constexpr (PLANES == 2) {
            product.block<How, 2, 2>(p, column, ahead, finish, out);
            p += 2;
          } else if (more >= 5 || more == 3) {
            product.block<How, 3, 1>(p, column, ahead, finish, out);
            p += 3;
          } else if (more >= 2) {
            product.block<How, 2, 1>(p, column, ahead, finish, out);
            p += 2;
          } else {
            product.block<How, 1, 1>(p, column, ahead, finish, out);
            p += 1;
          }
        }
      }
  });
}

}  // namespace millm

#endif
