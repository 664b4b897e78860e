/* emu.h: what an emulated kernel asks of the emulated device. Included by the runtime (C) and by device.h (C++, before every kernel).
 *
 * A kernel is an ordinary shared library. Its threads are fibers (fiber.h) that one host thread runs in turn, a block at a time (block.c); a thread
 * gives way only where it waits: at a barrier of the block, at an instruction of the whole warp, in a spin on memory. So between two such places a
 * thread runs alone, and a debugger steps through it as through any function.
 *
 * Shared memory is one window of the host's memory for each block: the dynamic part first, then the static arrays with guards between, all filled
 * with ones (NaN in every float type, -1 as an integer) before the first thread starts. A 32-bit shared address is a place in the window plus
 * EMU_SHARED_BASE. */
#ifndef LT_EMU_H
#define LT_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_WARP         32
#define EMU_SHARED_BASE  0x400u /* So that a null pointer taken for a shared address is found. */
#define EMU_SHARED_BYTES (164u << 10)

typedef struct {
    unsigned x, y, z;
} emu_dim3;

/* The public half of a thread; block.c keeps the rest behind it. */
typedef struct {
    emu_dim3 thread, block, block_dim, grid_dim;
    unsigned rank, lane, warp; /* In the block; in the warp. */
} emu_thread;

/* The thread that runs now. Initial-exec, so that an access is two loads. */
extern __thread emu_thread *emu_self __attribute__((tls_model("initial-exec")));

/* What lanes do together: lanes[i] is what lane i brought, NULL where it is not in `mask`. Called once, by the last to come. */
typedef void (*emu_together)(void *const lanes[EMU_WARP], unsigned mask);
void emu_warp(unsigned mask, emu_together together, void *mine, const char *what);

/* Barrier `id` of the block; threads 0: all that have not left. arrive: count without waiting. */
void emu_barrier(int id, int threads);
void emu_barrier_arrive(int id, int threads);
void emu_spin(void); /* Nothing to do until another thread or block has moved on. */

/* The block's array of declaration `site`: the same for all its threads. */
void *emu_shared(const void *site, size_t bytes, size_t align, const char *name);
void *emu_shared_dynamic(void);
uint32_t emu_shared_address(const void *p); /* Ends the program when p is not in shared memory. */
void *emu_shared_pointer(uint32_t address, size_t bytes);

/* cp.async: done as late as the program allows, at the wait, so that a missing wait shows. */
void emu_cp_async(void *dst, const void *src, int bytes, int take);
void emu_cp_async_commit(void);
void emu_cp_async_wait(int n);

/* Words of 16 bits. */
float emu_f16_to_f32(uint16_t h);
uint16_t emu_f32_to_f16(float x);
uint16_t emu_f32_to_bf16(float x);

/* mma.sync.m16n8k16: d += a b; lanes bring an emu_mma. */
typedef struct {
    float d[4];
    uint32_t a[4], b[2];
} emu_mma;
void emu_mma_bf16(void *const lanes[EMU_WARP], unsigned mask);
void emu_mma_f16(void *const lanes[EMU_WARP], unsigned mask);

/* mma.sync.m16n8k32 of bytes, or of 16 columns with half the words zero: d += a b, a unsigned or signed. */
typedef struct {
    int32_t d[4];
    uint32_t a[4], b[2];
} emu_imma;
void emu_mma_u8(void *const lanes[EMU_WARP], unsigned mask);
void emu_mma_s8(void *const lanes[EMU_WARP], unsigned mask);

/* Say what is wrong, with kernel, block and thread, and end the program (a debugger stops there). */
__attribute__((noreturn, format(printf, 1, 2))) void emu_trap(const char *fmt, ...);

/* What a kernel's library exports for each of its kernels, as emu_entry_NAME. */
typedef struct {
    void (*call)(void **args);
    const uint32_t *arg_bytes;
    int n_args;
    int threads_max; /* __launch_bounds__ */
} emu_entry;

#ifdef __cplusplus
}
#endif

#endif
