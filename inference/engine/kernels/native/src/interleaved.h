// Products with interleaved weights: sixteen columns (outputs) lie side by side, word by word (two bfloat16 numbers or
// four bytes). They are read in one straight line, a vector of them is multiplied with a word of each row, and sums are
// rows of results already. Each sum adds its words one after the other, for any number of rows.
#pragma once

#include "interleaved_tiles.h"
#include "kernels.h"
#include "panels.h"
#include "vectors.h"

#if MILLM_BF16_DOT || MILLM_INT8_DOT

namespace millm {

constexpr int kLoneRows = 16;     // at most, if all rows are multiplied at once
constexpr int kGroupRows = 14;    // at most, if a weight in the cache is multiplied with group after group
constexpr int kStraightRows = 4;  // up to here, activations are read where they are instead of from a panel
constexpr int64_t kAheadBytes = 8192;

// How many blocks of columns are multiplied at once, so that their sums fill the registers. If all rows are multiplied
// at once, weights come from memory, and one straight line is faster until there are too many sums to be computed
// meanwhile.
constexpr int blocks_of(int rows, bool are_all) {
  if (are_all) return rows <= 8 || rows > kGroupRows ? 1 : 2;
  return rows <= 6 ? 4 : rows <= 9 ? 3 : 2;
}

// The sums of ROWS rows and BLOCKS blocks of columns. x is a panel, or rows `stride` words apart if IS_STRAIGHT.
template <typename How, int ROWS, int BLOCKS, bool IS_STRAIGHT>
inline void interleaved_tile(const Word* x, int64_t stride, const Word* w, int64_t words, Ahead ahead,
                             typename How::Sums (*out)[BLOCKS]) {
  using Numbers = typename How::Numbers;
  typename How::Sums acc[ROWS][BLOCKS];
  for (auto& row : acc)
    for (auto& a : row) a = How::zero();
  const int64_t block = words * kPanelRows;
  const Word *column = w, *row = x;
  for (int64_t i = 0; i < words; ++i, column += kPanelRows, row += IS_STRAIGHT ? 1 : kPanelRows) {
    asm("" : "+r"(column), "+r"(row));
    if constexpr (BLOCKS == 1)
      fetch_ahead(column + kAheadBytes / static_cast<int64_t>(sizeof(Word)));
    else
      ahead.step();
    Numbers columns[BLOCKS];
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; ++b) columns[b] = (Numbers)_mm512_load_si512(column + b * block);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const auto word = (Numbers)_mm512_set1_epi32(row[IS_STRAIGHT ? r * stride : r]);
#pragma GCC unroll 4
      for (int b = 0; b < BLOCKS; ++b) acc[r][b] = How::add(acc[r][b], word, columns[b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; ++b) out[r][b] = acc[r][b];
}

// One product. x: PLANES rows of words for each of `rows` rows of results, where they are (IS_STRAIGHT) or in panels of
// `each`; w: n / 16 blocks of columns.
template <typename How, int PLANES, bool IS_STRAIGHT, typename T, typename Finish>
struct InterleavedProduct {
  const Word* x;
  int64_t stride, rows, each;
  const Word* w;
  int64_t n, words;
  const Finish& finish;
  T* out;

  template <int ROWS, int BLOCKS>
  void tile(int64_t group, int64_t block, Ahead ahead) const {
    typename How::Sums sums[ROWS][BLOCKS];
    const int64_t block_words = words * kPanelRows, column = block * kPanelRows;
    interleaved_tile<How, ROWS, BLOCKS, IS_STRAIGHT>(x + group * block_words, stride, w + block * block_words, words,
                                                     ahead, sums);
    for (int r = 0; r < ROWS / PLANES; ++r) {
      const int64_t row = group * each + r;
      put_row<How, PLANES, BLOCKS>(
          row, column, [&](int p, int b) { return sums[r * PLANES + p][b]; }, finish, out + row * n + column);
    }
  }

  // The sums of a group and `blocks` blocks, of a number of rows that is known only now.
  void tiles(int64_t group, int64_t block, int64_t blocks, Ahead ahead) const {
    const int64_t mine = std::min(each, rows - group * each) * PLANES;
    unrolled<(IS_STRAIGHT ? kStraightRows : kLoneRows) / PLANES>([&](auto i) {
      constexpr int kRows = (i + 1) * PLANES, kBlocks = kRows > kGroupRows ? 1 : blocks_of(kRows, false);
      if (mine != kRows) return;
      unrolled<kBlocks>([&](auto b) {
        if (blocks == b + 1) tile<kRows, b + 1>(group, block, ahead);
      });
    });
  }
};

// x w^T of `rows` rows of activations, each of PLANES rows of words `stride` words apart. w holds n / 16 blocks of
// `words` words of sixteen columns. finish(row, column, sums) makes sixteen results of the sums in each plane.
template <typename How, int PLANES, typename T, typename Finish>
void multiply_interleaved(const Word* x, int64_t stride, int64_t rows, const Word* w, int64_t n, int64_t words,
                          const Finish& finish, T* out) {
  if (rows == 0) return;
#if MILLM_TILES
  if (has_tiles()) return multiply_in_tiles<How, PLANES>(x, stride, rows, w, n, words, finish, out);
#endif
  const bool are_all = rows * PLANES <= kLoneRows;
  const int64_t most = are_all ? rows : kGroupRows / PLANES, groups = (rows + most - 1) / most;
  const int64_t each = (rows + groups - 1) / groups, blocks = n / kPanelRows, block_words = words * kPanelRows;
  const int64_t width = blocks_of(static_cast<int>(each * PLANES), are_all);
  const int64_t tiles = (blocks + width - 1) / width, fitting = kTakenBytes / (width * block_words * 4);
  const int64_t most_taken = std::clamp<int64_t>(fitting, 1, are_all ? tiles : 8);
  const int64_t taken = std::clamp<int64_t>(tiles / (num_threads() * 4), 1, most_taken);
  const int64_t kept = std::max<int64_t>(1, kPanelBytes / (block_words * 4));
  const auto multiply = [&](const auto& product) {
    share_out(tiles, taken, [&](int64_t from, int64_t to) {
      for (int64_t start = 0; start < groups; start += kept) {
        const int64_t end = std::min(groups, start + kept);
        for (int64_t t = from; t < to; ++t) {
          const int64_t following = (t + 1 < to || end == groups ? t + 1 : from) * width;
          const int64_t left = std::min(width, blocks - following);
          const Word* fetched = left > 0 ? w + following * block_words : nullptr;
          for (int64_t g = start; g < end; ++g)
            product.tiles(g, t * width, std::min(width, blocks - t * width),
                          Ahead::share(fetched, left * block_words, g - start, end - start, words));
        }
      }
    });
  };
  if (rows * PLANES <= kStraightRows)
    return multiply(InterleavedProduct<How, PLANES, true, T, Finish>{x, stride, rows, each, w, n, words, finish, out});
  const AlignedWords panels(groups * block_words);
  parallel_for(0, groups, 2, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g)
      fill_panel(x + g * each * PLANES * stride, stride * 4, std::min(each, rows - g * each) * PLANES, words * 4,
                 panels.data() + g * block_words);
  });
  multiply(InterleavedProduct<How, PLANES, false, T, Finish>{panels.data(), 0, rows, each, w, n, words, finish, out});
}

// Makes a row-major weight of 16 `blocks` rows of `bytes` bytes interleaved, in place: a block keeps its memory.
inline void interleave_rows(char* rows, int64_t blocks, int64_t bytes) {
  const int64_t block_bytes = kPanelRows * bytes;
  parallel_for(0, blocks, std::max<int64_t>(1, (256 << 10) / block_bytes), [&](int64_t begin, int64_t end) {
    const auto block = std::make_unique_for_overwrite<char[]>(block_bytes);
    for (int64_t b = begin; b < end; ++b) {
      std::memcpy(block.get(), rows + b * block_bytes, block_bytes);
      fill_panel(block.get(), bytes, kPanelRows, bytes, reinterpret_cast<Word*>(rows + b * block_bytes));
    }
  });
}

}  // namespace millm

#endif
