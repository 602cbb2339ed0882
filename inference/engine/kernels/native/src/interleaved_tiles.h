// Products with interleaved weights and tiles (AMX). Sixteen words of a block of columns are the second matrix of the
// instruction as they lie in memory; rows of activations are the first one, and sums are rows of results. A sum adds
// its words in one order, for any number of rows.
#pragma once

#include "kernels.h"
#include "panels.h"
#include "tiles.h"
#include "vectors.h"

#if MILLM_TILES

namespace millm {

constexpr int64_t kTileRows = 16, kTileWords = 16, kTileSize = kTileRows * kTileWords;
constexpr int64_t kLoneGroups = 2;  // at most, if a weight is read once: the next tile is fetched, not the next blocks

// Of a row, the last of which may not be full.
inline int64_t tiles_of(int64_t words) { return (words + kTileWords - 1) / kTileWords; }

// The sums of GROUPS groups of rows and BLOCKS blocks of columns. Tiles 0 to 3 are the sums, 4 and 5 the rows, 6 and 7
// the columns. x holds tiles of `tile` words, group after group. `ahead` fetches the blocks that follow; without it,
// the next tile of each block is fetched.
template <typename How, int GROUPS, int BLOCKS>
inline void tile_sums(const Word* x, int64_t tile, const Word* w, int64_t words, Ahead ahead,
                      typename How::Sums (*out)[BLOCKS][kTileRows]) {
  const int64_t block = words * kPanelRows, group = tiles_of(words) * tile;
  const auto step = [&](const Word* row, const Word* column, int64_t stride_of_blocks) {
    _tile_loadd(4, row, 64);
    if constexpr (GROUPS > 1) _tile_loadd(5, row + group, 64);
    _tile_loadd(6, column, 64);
    MILLM_TILE_PRODUCT(How, 0, 4, 6);
    if constexpr (GROUPS > 1) MILLM_TILE_PRODUCT(How, 2, 5, 6);
    if constexpr (BLOCKS > 1) {
      _tile_loadd(7, column + stride_of_blocks, 64);
      MILLM_TILE_PRODUCT(How, 1, 4, 7);
      if constexpr (GROUPS > 1) MILLM_TILE_PRODUCT(How, 3, 5, 7);
    }
  };
  before_tiles();
  _tile_zero(0);
  if constexpr (BLOCKS > 1) _tile_zero(1);
  if constexpr (GROUPS > 1) _tile_zero(2);
  if constexpr (GROUPS > 1 && BLOCKS > 1) _tile_zero(3);
  const int64_t whole = words / kTileWords;
  for (int64_t i = 0; i < whole; ++i) {
    const Word* column = w + i * kTileSize;
    if (ahead.at == nullptr)
      for (int64_t line = kTileRows; line < 2 * kTileRows; ++line)
        for (int b = 0; b < BLOCKS; ++b) fetch_ahead(column + b * block + line * kTileWords);
    else
      ahead.step();
    step(x + i * tile, column, block);
  }
  if (words % kTileWords != 0) {
    alignas(64) Word ends[BLOCKS][kTileSize] = {};
    for (int b = 0; b < BLOCKS; ++b)
      std::copy_n(w + b * block + whole * kTileSize, words % kTileWords * kPanelRows, ends[b]);
    before_tiles();
    step(x + whole * tile, ends[0], kTileSize);
  }
  _tile_stored(0, out[0][0], 64);
  if constexpr (BLOCKS > 1) _tile_stored(1, out[0][1], 64);
  if constexpr (GROUPS > 1) _tile_stored(2, out[1][0], 64);
  if constexpr (GROUPS > 1 && BLOCKS > 1) _tile_stored(3, out[1][1], 64);
}

// One product: PLANES rows of words for each of `rows` rows of results, `each` of these in a group. x: the tiles.
template <typename How, int PLANES, typename T, typename Finish>
struct TileProduct {
  const Word* x;
  int64_t rows, each;
  const Word* w;
  int64_t n, words;
  const Finish& finish;
  T* out;

  template <int GROUPS, int BLOCKS>
  void tiles(int64_t group, int64_t block, Ahead ahead) const {
    alignas(64) typename How::Sums sums[GROUPS][BLOCKS][kTileRows];
    const int64_t column = block * kPanelRows;
    const int64_t from = group * each, to = std::min(rows, from + GROUPS * each);
    for (int64_t row = from; row < to; ++row) __builtin_prefetch(out + row * n + column, 1, 3);
    const int64_t tile = each * PLANES * kTileWords;
    tile_sums<How, GROUPS, BLOCKS>(x + group * tiles_of(words) * tile, tile, w + block * words * kPanelRows, words,
                                   ahead, sums);
    for (int64_t row = from; row < to; ++row) {
      const auto& of_group = sums[GROUPS > 1 && row - from >= each];
      const int64_t plane = (row - from) % each * PLANES;
      put_row<How, PLANES, BLOCKS>(
          row, column, [&](int p, int b) { return of_group[b][plane + p]; }, finish, out + row * n + column);
    }
  }

  void tiles(int64_t group, int64_t groups, int64_t block, int64_t blocks, Ahead ahead) const {
    if (groups > 1)
      blocks > 1 ? tiles<2, 2>(group, block, ahead) : tiles<2, 1>(group, block, ahead);
    else
      blocks > 1 ? tiles<1, 2>(group, block, ahead) : tiles<1, 1>(group, block, ahead);
  }
};

// Makes the tiles of a group of `rows` rows, with zeros behind the last row and word.
inline void pack_tiles(const Word* x, int64_t stride, int64_t rows, int64_t words, int64_t tile_rows, Word* tiles) {
  for (int64_t at = 0; at < words; at += kTileWords)
    for (int64_t r = 0; r < tile_rows; ++r, tiles += kTileWords) {
      const auto left = static_cast<int>(std::min(kTileWords, words - at));
      const auto mask = static_cast<__mmask16>(r < rows ? (1u << left) - 1 : 0);
      _mm512_store_si512(tiles, _mm512_maskz_loadu_epi32(mask, x + r * stride + at));
    }
}

// multiply_interleaved with tiles.
template <typename How, int PLANES, typename T, typename Finish>
void multiply_in_tiles(const Word* x, int64_t stride, int64_t rows, const Word* w, int64_t n, int64_t words,
                       const Finish& finish, T* out) {
  const int64_t most = kTileRows / PLANES, groups = (rows + most - 1) / most, each = (rows + groups - 1) / groups;
  const int64_t tile_rows = each * PLANES, group_words = tiles_of(words) * tile_rows * kTileWords;
  const int64_t block_words = words * kPanelRows;
  const AlignedWords packed(groups * group_words);
  parallel_for(0, groups, 2, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g)
      pack_tiles(x + g * tile_rows * stride, stride, std::min(each, rows - g * each) * PLANES, words, tile_rows,
                 packed.data() + g * group_words);
  });
  const TileProduct<How, PLANES, T, Finish> product{packed.data(), rows, each, w, n, words, finish, out};
  const int64_t blocks = n / kPanelRows, pairs = (blocks + 1) / 2, fitting = kTakenBytes / (2 * block_words * 4);
  const int64_t taken = std::clamp<int64_t>(pairs / (num_threads() * 4), 1, std::max<int64_t>(1, fitting));
  const int64_t kept = std::max<int64_t>(2, kPanelBytes / (group_words * 4) / 2 * 2);
  share_out(pairs, taken, [&](int64_t from, int64_t to) {
    const TileSettings settings(true, static_cast<int>(tile_rows), 6);
    for (int64_t start = 0; start < groups; start += kept) {
      const int64_t end = std::min(groups, start + kept), passes = (end - start + 1) / 2;
      for (int64_t t = from; t < to; ++t) {
        const int64_t following = (t + 1 < to || end == groups ? t + 1 : from) * 2;
        const int64_t left = std::min<int64_t>(2, blocks - following);
        const Word* fetched = left > 0 && groups > kLoneGroups ? w + following * block_words : nullptr;
        for (int64_t g = start; g < end; g += 2)
          product.tiles(g, end - g, 2 * t, blocks - 2 * t,
                        Ahead::share(fetched, left * block_words, (g - start) / 2, passes, tiles_of(words)));
      }
    }
  });
}

}  // namespace millm

#endif
