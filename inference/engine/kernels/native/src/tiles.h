// Tiles of AMX: matrices of up to 16 rows of 64 bytes in registers, multiplied with each other by one instruction.
#pragma once

#include "vectors.h"

#if MILLM_BF16_DOT && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define MILLM_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define MILLM_TILES 0
#endif

#include <cstdint>

namespace millm {

constexpr int64_t kTileSide = 16;  // rows of a tile, and words of a row
constexpr int64_t kTileSize = kTileSide * kTileSide;

// Whether this process may use tiles. Linux reserves the memory for their state only for processes that ask.
inline bool has_tiles() {
#if MILLM_TILES
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool is_allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_allowed;
#else
  return false;
#endif
}

// While it exists, this thread's tiles are of full size, but those before `whole` have `rows` rows.
// Afterwards they are unused again, so that a switch to another thread saves nothing of them.
class TileSettings {
 public:
  explicit TileSettings(bool is_used, [[maybe_unused]] int rows = 16, [[maybe_unused]] int whole = 0)
      : is_used_(is_used) {
#if MILLM_TILES
    Layout layout;
    for (int tile = 0; tile < whole; ++tile) layout.rows[tile] = static_cast<uint8_t>(rows);
    asm volatile("" : : "m"(layout) : "memory");  // GCC takes the instruction to read no more than the first bytes
    if (is_used) _tile_loadconfig(&layout);
#endif
  }
  TileSettings(const TileSettings&) = delete;
  ~TileSettings() {
#if MILLM_TILES
    if (is_used_) _tile_release();
#endif
  }

 private:
  struct alignas(64) Layout {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  [[maybe_unused]] bool is_used_;
};

// GCC does not know that the instructions for tiles read memory: what they read is written before this line.
inline void before_tiles() { asm volatile("" ::: "memory"); }

// Adds the product of two tiles to a third: of pairs of bfloat16, or of unsigned and signed bytes. The numbers of the
// tiles must be literals.
#define MILLM_TILE_PRODUCT(HOW, SUMS, ROWS, COLUMNS) \
  do {                                               \
    if constexpr (HOW::kIsFloat)                     \
      _tile_dpbf16ps(SUMS, ROWS, COLUMNS);           \
    else                                             \
      _tile_dpbusd(SUMS, ROWS, COLUMNS);             \
  } while (false)

}  // namespace millm
