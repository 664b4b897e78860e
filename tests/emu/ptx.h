/* ptx.h: the PTX instructions of our kernels for sm_80. rewrite.c makes asm("a.b::c %0, [%1], 16;"
 * ...) the call ptx_a_b_c(op0, op1, 16): with the operands in the order of the instruction. Those
 * of sm_90 are in ptx_hopper.h. An instruction that is in neither ends the program when it is
 * reached. */
#ifndef LT_EMU_PTX_H
#define LT_EMU_PTX_H

/* ---- Conversions, exponentials */
static inline void ptx_cvt_rn_bf16_f32(uint16_t &y, float x) {
    y = emu_f32_to_bf16(x);
}
static inline void ptx_cvt_f32_f16(float &y, uint16_t x) {
    y = emu_f16_to_f32(x);
}
static inline void ptx_cvt_rn_f16_f32(uint16_t &y, float x) {
    y = emu_f32_to_f16(x);
}
static inline void ptx_cvt_rn_bf16x2_f32(uint32_t &y, float hi, float lo) {
    y = (uint32_t)emu_f32_to_bf16(hi) << 16 | emu_f32_to_bf16(lo);
}
static inline void ptx_cvt_rn_f16x2_f32(uint32_t &y, float hi, float lo) {
    y = (uint32_t)emu_f32_to_f16(hi) << 16 | emu_f32_to_f16(lo);
}
static inline void ptx_mov_b32(uint16_t &lo, uint16_t &hi, uint32_t x) {
    lo = (uint16_t)x;
    hi = (uint16_t)(x >> 16);
}
static inline void ptx_ex2_approx_ftz_f32(float &y, float x) {
    y = exp2f(x);
}

/* ---- Two halves at a time: in double, where products of 16-bit floats are exact, then rounded
 * to F32 and once more: correct except for results close to a tie. */
static inline uint32_t emu_bf16_fma(uint32_t a, uint32_t b, uint32_t c) {
    float x, y, z;
    const uint32_t bits[3] = {a << 16, b << 16, c << 16};
    __builtin_memcpy(&x, &bits[0], 4), __builtin_memcpy(&y, &bits[1], 4),
        __builtin_memcpy(&z, &bits[2], 4);
    return emu_f32_to_bf16((float)((double)x * y + z));
}
static inline uint32_t emu_f16_fma(uint32_t a, uint32_t b, uint32_t c) {
    return emu_f32_to_f16(
        (float)((double)emu_f16_to_f32((uint16_t)a) * emu_f16_to_f32((uint16_t)b) +
                emu_f16_to_f32((uint16_t)c)));
}
static inline void ptx_lop3_b32(uint32_t &y, uint32_t a, uint32_t b, uint32_t c, unsigned table) {
    y = 0;
    for (unsigned i = 0; i < 8; i++) {
        y |= table >> i & 1 ? (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c) : 0;
    }
}
static inline void ptx_fma_rn_bf16x2(uint32_t &y, uint32_t a, uint32_t b, uint32_t c) {
    y = emu_bf16_fma(a, b, c) | emu_bf16_fma(a >> 16, b >> 16, c >> 16) << 16;
}
static inline void ptx_fma_rn_f16x2(uint32_t &y, uint32_t a, uint32_t b, uint32_t c) {
    y = emu_f16_fma(a, b, c) | emu_f16_fma(a >> 16, b >> 16, c >> 16) << 16;
}

/* ---- Maximum over a warp */
static inline void ptx_redux_sync_max_u32(uint32_t &y, uint32_t x, unsigned mask) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const uint32_t other = __shfl_xor_sync(mask, x, lanes);
        x = other > x ? other : x;
    }
    y = x;
}

/* ---- Loads and stores */
static inline void ptx_ld_global_nc_L1_no_allocate_v4_u32(uint32_t &x, uint32_t &y, uint32_t &z,
                                                          uint32_t &w, const void *p) {
    const uint4 v = *(const uint4 *)p;
    x = v.x, y = v.y, z = v.z, w = v.w;
}
static inline void ptx_ld_global_nc_L1_no_allocate_v2_u32(uint32_t &x, uint32_t &y, const void *p) {
    const uint2 v = *(const uint2 *)p;
    x = v.x, y = v.y;
}
static inline void ptx_ld_shared_v4_f32(float &x, float &y, float &z, float &w, uint32_t p) {
    const float4 v = *(const float4 *)emu_shared_pointer(p, 16);
    x = v.x, y = v.y, z = v.z, w = v.w;
}
static inline void ptx_ld_shared_v4_b32(uint32_t &x, uint32_t &y, uint32_t &z, uint32_t &w,
                                        uint32_t p) {
    const uint4 v = *(const uint4 *)emu_shared_pointer(p, 16);
    x = v.x, y = v.y, z = v.z, w = v.w;
}
static inline void ptx_ld_shared_v2_f32(float &x, float &y, uint32_t p) {
    const float2 v = *(const float2 *)emu_shared_pointer(p, 8);
    x = v.x, y = v.y;
}
static inline void ptx_ld_shared_f32(float &x, uint32_t p) {
    x = *(const float *)emu_shared_pointer(p, 4);
}
static inline void ptx_ld_shared_u16(uint16_t &x, uint32_t p) {
    x = *(const uint16_t *)emu_shared_pointer(p, 2);
}
static inline void ptx_ld_shared_s32(int &x, uint32_t p) {
    x = *(const int *)emu_shared_pointer(p, 4);
}
static inline void ptx_st_shared_s32(uint32_t p, int x) {
    *(int *)emu_shared_pointer(p, 4) = x;
}
static inline void ptx_st_shared_v2_f32(uint32_t p, float x, float y) {
    *(float2 *)emu_shared_pointer(p, 8) = {x, y};
}
static inline void ptx_st_shared_v2_s32(uint32_t p, int x, int y) {
    *(int2 *)emu_shared_pointer(p, 8) = {x, y};
}
static inline void ptx_st_shared_v4_s32(uint32_t p, int x, int y, int z, int w) {
    *(int4 *)emu_shared_pointer(p, 16) = {x, y, z, w};
}
static inline void ptx_st_shared_v4_b32(uint32_t p, uint32_t x, uint32_t y, uint32_t z,
                                        uint32_t w) {
    *(uint4 *)emu_shared_pointer(p, 16) = {x, y, z, w};
}

/* ---- Flags between blocks: a poll that finds nothing lets others run. */
static inline void ptx_st_release_gpu_global_s32(int *p, int x) {
    emu_release();
    __atomic_store_n(p, x, __ATOMIC_RELEASE);
}
static inline void ptx_ld_acquire_gpu_global_s32(int &x, const int *p) {
    emu_spin();
    x = __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

/* ---- Barriers for part of the block */
static inline void ptx_bar_sync(int id, int threads) {
    emu_barrier(id, threads);
}
static inline void ptx_bar_arrive(int id, int threads) {
    emu_barrier_arrive(id, threads);
}

/* ---- cp.async */
static inline void ptx_cp_async_cg_shared_global(uint32_t dst, const void *src, int bytes,
                                                 int take) {
    emu_cp_async(emu_shared_pointer(dst, 16), src, bytes, take);
}
static inline void ptx_cp_async_cg_shared_global(uint32_t dst, const void *src, int bytes) {
    emu_cp_async(emu_shared_pointer(dst, 16), src, bytes, bytes);
}
/* The emulated cache evicts nothing. The fraction, 1.0, arrives as two words. */
static inline void ptx_createpolicy_fractional_L2_evict_first_b64(unsigned long long &policy, int,
                                                                  int) {
    policy = 0;
}
static inline void ptx_cp_async_cg_shared_global_L2_cache_hint(uint32_t dst, const void *src,
                                                               int bytes, uint64_t) {
    emu_cp_async(emu_shared_pointer(dst, 16), src, bytes, bytes);
}
static inline void ptx_cp_async_ca_shared_global(uint32_t dst, const void *src, int bytes,
                                                 int take) {
    emu_cp_async(emu_shared_pointer(dst, (size_t)bytes), src, bytes, take);
}
static inline void ptx_cp_async_ca_shared_global(uint32_t dst, const void *src, int bytes) {
    emu_cp_async(emu_shared_pointer(dst, (size_t)bytes), src, bytes, bytes);
}
static inline void ptx_cp_async_commit_group(void) {
    emu_cp_async_commit();
}
static inline void ptx_cp_async_wait_group(int n) {
    emu_cp_async_wait(n);
}

/* ---- Matrices of a warp */
struct emu_ldmatrix {
    const uint16_t *row; /* Row lane % 8 of matrix lane / 8. */
    uint32_t r[4];
};
template <bool TRANS> static void emu_ldmatrix_all(void *const lanes[EMU_WARP], unsigned mask) {
    if (mask != 0xffffffffu) {
        emu_trap("ldmatrix with lanes %08x only", mask);
    }
    for (int lane = 0; lane < EMU_WARP; lane++) {
        emu_ldmatrix *const mine = (emu_ldmatrix *)lanes[lane];
        for (int i = 0; i < 4; i++) {
            uint32_t pair[2];
            for (int e = 0; e < 2; e++) {
                const int row = TRANS ? 2 * (lane % 4) + e : lane / 4;
                const int col = TRANS ? lane / 4 : 2 * (lane % 4) + e;
                pair[e] = ((const emu_ldmatrix *)lanes[8 * i + row])->row[col];
            }
            mine->r[i] = pair[0] | pair[1] << 16;
        }
    }
}
static inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &a, uint32_t &b,
                                                                uint32_t &c, uint32_t &d,
                                                                uint32_t p) {
    emu_ldmatrix m = {(const uint16_t *)emu_shared_pointer(p, 16), {}};
    emu_warp(0xffffffffu, emu_ldmatrix_all<false>, &m, "ldmatrix");
    a = m.r[0], b = m.r[1], c = m.r[2], d = m.r[3];
}
static inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &a, uint32_t &b,
                                                                      uint32_t &c, uint32_t &d,
                                                                      uint32_t p) {
    emu_ldmatrix m = {(const uint16_t *)emu_shared_pointer(p, 16), {}};
    emu_warp(0xffffffffu, emu_ldmatrix_all<true>, &m, "ldmatrix.trans");
    a = m.r[0], b = m.r[1], c = m.r[2], d = m.r[3];
}
/* d, a, b, and d again. */
static inline void emu_ptx_mma(emu_together how, float &d0, float &d1, float &d2, float &d3,
                               uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                               uint32_t b1) {
    emu_mma m = {{d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}};
    emu_warp(0xffffffffu, how, &m, "mma.sync");
    d0 = m.d[0], d1 = m.d[1], d2 = m.d[2], d3 = m.d[3];
}
static inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
    float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1, float, float, float, float) {
    emu_ptx_mma(emu_mma_bf16, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);
}
static inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1, float, float, float, float) {
    emu_ptx_mma(emu_mma_f16, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1);
}
static inline void emu_ptx_imma(emu_together how, int &d0, int &d1, int &d2, int &d3, uint32_t a0,
                                uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                                const int c[4]) {
    emu_imma m = {{c[0], c[1], c[2], c[3]}, {a0, a1, a2, a3}, {b0, b1}};
    emu_warp(0xffffffffu, how, &m, "mma.sync");
    d0 = m.d[0], d1 = m.d[1], d2 = m.d[2], d3 = m.d[3];
}
static inline void ptx_mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32(
    int &d0, int &d1, int &d2, int &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1, int c0, int c1, int c2, int c3) {
    const int c[4] = {c0, c1, c2, c3};
    emu_ptx_imma(emu_mma_u8, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, c);
}
static inline void ptx_mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(
    int &d0, int &d1, int &d2, int &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1, int c0, int c1, int c2, int c3) {
    const int c[4] = {c0, c1, c2, c3};
    emu_ptx_imma(emu_mma_s8, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, c);
}
static inline void ptx_mma_sync_aligned_m16n8k16_row_col_s32_u8_s8_s32(int &d0, int &d1, int &d2,
                                                                       int &d3, uint32_t a0,
                                                                       uint32_t a1, uint32_t b,
                                                                       int c0, int c1, int c2,
                                                                       int c3) {
    const int c[4] = {c0, c1, c2, c3};
    emu_ptx_imma(emu_mma_u8, d0, d1, d2, d3, a0, a1, 0, 0, b, 0, c);
}
static inline void ptx_max_NaN_f32(float &y, float a, float b) {
    y = a != a ? a : b != b ? b : a > b ? a : b;
}

#endif
