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

constexpr int64_t kLoneGroups = 2;  // at most, if a weight is read once: the next tile is fetched, not the next blocks
constexpr int64_t kChunk = 8;               // tiles of a row: those of two blocks stay in the first cache
constexpr int64_t kFewPasses = 6;           // for which chunks gain nothing
constexpr int64_t kTileBytes = 1200 << 10;  // of rows' tiles that stay in the second cache
constexpr int64_t kMostGroups = 36;         // whose sums stay there with them,
constexpr int64_t kMostPairs = 8;           // of so many pairs of blocks
constexpr int64_t kShares = 2;              // of a thread, or more
constexpr int64_t kStreamedBytes = 2 << 20;  // of results, from which on no cache would keep them

// Of a row, the last of which may not be full.
inline int64_t tiles_of(int64_t words) { return (words + kTileSide - 1) / kTileSide; }

// One product: PLANES rows of words for each of `rows` rows of results, `each` of these in a group. x: the tiles, group
// after group; w: blocks of columns.
template <int PLANES, typename T, typename Finish>
struct TileProduct {
  const Word* x;
  int64_t rows, each;
  const Word* w;
  int64_t n, words;
  const Finish& finish;
  T* out;
  bool streams;  // whether results go past the caches

  int64_t tile() const { return each * PLANES * kTileSide; }
  int64_t group() const { return tiles_of(words) * tile(); }
  int64_t block() const { return words * kPanelRows; }
  const Word* column(int64_t b, int64_t t) const { return w + b * block() + t * kTileSize; }
};

// A thread that multiplies two groups of rows and two blocks of columns in a pass, as far as there are so many. Where
// there are many passes, sums wait in memory between chunks of their words, so that those of the columns stay in the
// first cache for all rows.
template <typename How, int PLANES, typename T, typename Finish>
class TileWorker {
 public:
  TileWorker(const TileProduct<PLANES, T, Finish>& product, int64_t most_pairs, int64_t most_groups)
      : product_(product), sums_(most_pairs * passes_of(most_groups) * kPass * kTileSide) {}
  TileWorker(const TileWorker&) = delete;
  ~TileWorker() {
    if (product_.streams) _mm_sfence();  // others may read the results
  }

  // Pairs of blocks from `from` to `to`, for groups from `start` to `end`, `segment` tiles of a row at a time. What is
  // fetched ahead at the end are the blocks of pair `then`.
  void run(int64_t from, int64_t to, int64_t start, int64_t end, int64_t segment, int64_t then) {
    const int64_t tiles = tiles_of(product_.words), blocks = product_.n / kPanelRows, passes = passes_of(end - start);
    const bool fetches = product_.rows > kLoneGroups * product_.each;
    for (int64_t tile = 0; tile < tiles; tile += segment)
      for (int64_t pair = from; pair < to; ++pair) {
        const bool is_last = pair + 1 == to, is_end = is_last && tile + segment >= tiles;
        const int64_t next_pair = is_end ? then : is_last ? from : pair + 1;
        const int64_t next_tile = is_end ? 0 : is_last ? tile + segment : tile;
        const Word* next = fetches && next_pair * 2 < blocks ? product_.column(2 * next_pair, next_tile) : nullptr;
        multiply_pair(pair, start, end, tile, std::min(tiles, tile + segment), next,
                      std::min(segment, tiles - next_tile) * kTileSize, (pair - from) * passes);
      }
  }

 private:
  using Sums = typename How::Sums;
  static constexpr int64_t kPass = 2 * 2 * kTileSide;  // vectors of sums

  struct Part {
    int64_t group, block, tile, end;
    Sums* sums;
    Ahead ahead;
  };

  static int64_t passes_of(int64_t groups) { return (groups + 1) / 2; }

  // Tiles from `first` to `last` of a pair of blocks. `next` has the words to fetch, `count` of them in each of two
  // blocks. The sums are those of passes from `place` on.
  void multiply_pair(int64_t pair, int64_t start, int64_t end, int64_t first, int64_t last, const Word* next,
                     int64_t count, int64_t place) {
    const int64_t passes = passes_of(end - start), chunk = passes > kFewPasses ? kChunk : last - first;
    const int64_t parts = (last - first + chunk - 1) / chunk * passes, half = (parts + 1) / 2;
    const bool has_two = product_.n / kPanelRows - 2 * pair > 1;
    int64_t number = 0;
    for (int64_t tile = first; tile < last; tile += chunk)
      for (int64_t pass = 0; pass < passes; ++pass, ++number) {
        const Word* fetched = next == nullptr ? nullptr : number < half ? next : next + product_.block();
        const Part part{start + 2 * pass, 2 * pair, tile, std::min(last, tile + chunk),
                        reinterpret_cast<Sums*>(sums_.data()) + (place + pass) * kPass,
                        Ahead::share(fetched, count, number % half, half, std::min(chunk, last - first))};
        if (end - part.group > 1)
          has_two ? multiply<2, 2>(part) : multiply<2, 1>(part);
        else
          has_two ? multiply<1, 2>(part) : multiply<1, 1>(part);
      }
  }

  template <int GROUPS, int BLOCKS>
  void multiply(const Part& part) {
    add<GROUPS, BLOCKS>(part);
    if (part.end == tiles_of(product_.words))
      product_.streams ? put<GROUPS, BLOCKS, true>(part) : put<GROUPS, BLOCKS, false>(part);
  }

  // Adds the products of some tiles to the sums of a pass. Tiles 0 to 3 are the sums, 4 and 5 the rows, 6 and 7 the
  // columns.
  template <int GROUPS, int BLOCKS>
  void add(const Part& part) {
    Ahead ahead = part.ahead;
    const int64_t tile = product_.tile(), group = product_.group(), block = product_.block();
    const Word *x = product_.x + part.group * group, *w = product_.w + part.block * block;
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
    if (part.tile == 0) {
      _tile_zero(0);
      if constexpr (BLOCKS > 1) _tile_zero(1);
      if constexpr (GROUPS > 1) _tile_zero(2);
      if constexpr (GROUPS > 1 && BLOCKS > 1) _tile_zero(3);
    } else {
      _tile_loadd(0, part.sums, 64);
      if constexpr (BLOCKS > 1) _tile_loadd(1, part.sums + kTileSide, 64);
      if constexpr (GROUPS > 1) _tile_loadd(2, part.sums + 2 * kTileSide, 64);
      if constexpr (GROUPS > 1 && BLOCKS > 1) _tile_loadd(3, part.sums + 3 * kTileSide, 64);
    }
    const int64_t whole = std::min(part.end, product_.words / kTileSide);
    for (int64_t i = part.tile; i < whole; ++i) {
      const Word* column = w + i * kTileSize;
      if (ahead.at == nullptr)  // the next tile of each block
        for (int64_t line = kTileSide; line < 2 * kTileSide; ++line)
          for (int b = 0; b < BLOCKS; ++b) fetch_ahead(column + b * block + line * kTileSide);
      else
        ahead.step();
      step(x + i * tile, column, block);
    }
    if (whole < part.end) {
      alignas(64) Word ends[BLOCKS][kTileSize] = {};
      for (int b = 0; b < BLOCKS; ++b)
        std::copy_n(w + b * block + whole * kTileSize, product_.words % kTileSide * kPanelRows, ends[b]);
      before_tiles();
      step(x + whole * tile, ends[0], kTileSize);
    }
    _tile_stored(0, part.sums, 64);
    if constexpr (BLOCKS > 1) _tile_stored(1, part.sums + kTileSide, 64);
    if constexpr (GROUPS > 1) _tile_stored(2, part.sums + 2 * kTileSide, 64);
    if constexpr (GROUPS > 1 && BLOCKS > 1) _tile_stored(3, part.sums + 3 * kTileSide, 64);
    before_tiles();
  }

  // The results of the rows of a pass.
  template <int GROUPS, int BLOCKS, bool STREAMS>
  void put(const Part& part) {
    const int64_t first = part.group * product_.each, column = part.block * kPanelRows;
    T* to = product_.out + first * product_.n + column;
    for (int g = 0; g < GROUPS; ++g) {
      const Sums* sums = part.sums + g * 2 * kTileSide;
      const int64_t row = first + g * product_.each, end = std::min(product_.rows, row + product_.each);
      for (int64_t r = row; r < end; ++r, sums += PLANES, to += product_.n)
        put_row<How, PLANES, BLOCKS, STREAMS>(
            r, column, [&](int p, int b) { return sums[b * kTileSide + p]; }, product_.finish, to);
    }
  }

  const TileProduct<PLANES, T, Finish>& product_;
  const AlignedWords sums_;
};

// Makes the tiles of a group of `rows` rows, with zeros behind the last row and word.
inline void pack_tiles(const Word* x, int64_t stride, int64_t rows, int64_t words, int64_t tile_rows, Word* tiles) {
  for (int64_t at = 0; at < words; at += kTileSide)
    for (int64_t r = 0; r < tile_rows; ++r, tiles += kTileSide) {
      const auto left = static_cast<int>(std::min(kTileSide, words - at));
      const auto mask = static_cast<__mmask16>(r < rows ? (1u << left) - 1 : 0);
      _mm512_store_si512(tiles, _mm512_maskz_loadu_epi32(mask, x + r * stride + at));
    }
}

// multiply_interleaved with tiles.
template <typename How, int PLANES, typename T, typename Finish>
void multiply_in_tiles(const Word* x, int64_t stride, int64_t rows, const Word* w, int64_t n, int64_t words,
                       const Finish& finish, T* out) {
  const int64_t most = kTileSide / PLANES, groups = (rows + most - 1) / most, each = (rows + groups - 1) / groups;
  const int64_t tile_rows = each * PLANES, group_words = tiles_of(words) * tile_rows * kTileSide;
  const AlignedWords packed(groups * group_words);
  parallel_for(0, groups, 2, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g)
      pack_tiles(x + g * tile_rows * stride, stride, std::min(each, rows - g * each) * PLANES, words, tile_rows,
                 packed.data() + g * group_words);
  });
  const bool is_even = n % (2 * kPanelRows) == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0;
  const bool streams = is_even && rows * n * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes;
  const TileProduct<PLANES, T, Finish> product{packed.data(), rows, each, w, n, words, finish, out, streams};
  const int64_t pairs = (n / kPanelRows + 1) / 2;
  const int64_t taken = std::clamp<int64_t>(pairs / (num_threads() * kShares), 1, kMostPairs);
  const int64_t parts = (groups + kMostGroups - 1) / kMostGroups, kept = ((groups + parts - 1) / parts + 1) / 2 * 2;
  const int64_t tiles = tiles_of(words), segments = (kept * tile_rows * 64 * tiles + kTileBytes - 1) / kTileBytes;
  const int64_t segment = ((tiles + segments - 1) / segments + kChunk - 1) / kChunk * kChunk;
  share_out(pairs, taken, [&](int64_t from, int64_t to) {
    const TileSettings settings(true, static_cast<int>(tile_rows), 6);
    TileWorker<How, PLANES, T, Finish> worker(product, to - from, std::min(kept, groups));
    for (int64_t start = 0; start < groups; start += kept)
      worker.run(from, to, start, std::min(groups, start + kept), segment, start + kept < groups ? from : to);
  });
}

}  // namespace millm

#endif
