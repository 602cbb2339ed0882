// Tiles of AMX: matrices of up to 16 rows of 64 bytes in registers, multiplied with each other by one instruction.
#pragma once

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define MILLM_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define MILLM_TILES 0
#endif

#include <cstdint>

namespace millm {

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

// While it exists, this thread's tiles are all of full size. Afterwards they are unused again, so that a switch to
// another thread saves nothing of them.
class TileSettings {
 public:
  explicit TileSettings(bool is_used) : is_used_(is_used) {
#if MILLM_TILES
    // Constant: GCC takes the instruction to read no more than the first bytes, and would not write the others.
    static constexpr Layout kFull;
    if (is_used) _tile_loadconfig(&kFull);
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

// Adds the product of two tiles to a third: of pairs of bfloat16, or of signed and unsigned bytes. The numbers of the
// tiles must be literals.
#define MILLM_TILE_PRODUCT(HOW, SUMS, COLUMNS, ROWS) \
  do {                                               \
    if constexpr (HOW::kIsFloat)                     \
      _tile_dpbf16ps(SUMS, COLUMNS, ROWS);           \
    else                                             \
      _tile_dpbsud(SUMS, COLUMNS, ROWS);             \
  } while (false)

}  // namespace millm
