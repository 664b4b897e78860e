/* ptx_hopper.h: the PTX instructions of our kernels that sm_90 has and sm_80 lacks; see ptx.h. */
#ifndef LT_EMU_PTX_HOPPER_H
#define LT_EMU_PTX_HOPPER_H

/* ---- No-ops: hints; registers handed over; ordering of what the emulator does in order; early
 * starts of kernels, which never happen here. */
static inline void ptx_prefetch_tensormap(const void *) {
}
static inline void ptx_cp_async_bulk_prefetch_L2_global(const void *, uint32_t) {
}
static inline void ptx_cp_async_bulk_prefetch_tensor_4d_L2_global_tile(const void *, int, int, int,
                                                                       int) {
}
static inline void ptx_setmaxnreg_inc_sync_aligned_u32(int) {
}
static inline void ptx_setmaxnreg_dec_sync_aligned_u32(int) {
}
static inline void ptx_fence_mbarrier_init_release_cluster(void) {
}
static inline void ptx_fence_proxy_async_shared_cta(void) {
}
static inline void ptx_fence_proxy_async_global(void) {
}
static inline void ptx_wgmma_fence_sync_aligned(void) {
}
static inline void ptx_griddepcontrol_wait(void) {
}
static inline void ptx_griddepcontrol_launch_dependents(void) {
}

/* ---- Predicates */
static inline void ptx_setp_ne_b32(bool &p, uint32_t a, uint32_t b) {
    p = a != b;
}
static inline void ptx_setp_gt_s32(bool &p, int a, int b) {
    p = a > b;
}
static inline void ptx_selp_b32(uint32_t &y, uint32_t a, uint32_t b, bool p) {
    y = p ? a : b;
}
static inline void ptx_trap(void) {
    emu_trap("trap");
}

/* ---- Clusters */
#define ptx_cluster_ctarank (emu_self->cluster_rank)
static inline void ptx_mov_u32(uint32_t &y, uint32_t x) {
    y = x;
}
static inline void ptx_mapa_shared_cluster_u32(uint32_t &y, uint32_t address, uint32_t rank) {
    y = emu_cluster_address(address, rank);
}
static inline void ptx_ld_shared_cluster_v4_f32(float &x, float &y, float &z, float &w,
                                                uint32_t p) {
    const float4 v = *(const float4 *)emu_cluster_pointer(p, 16);
    x = v.x, y = v.y, z = v.z, w = v.w;
}
static inline void ptx_barrier_cluster_arrive_release_aligned(void) {
    emu_cluster_arrive();
}
static inline void ptx_barrier_cluster_arrive_relaxed_aligned(void) {
    emu_cluster_arrive();
}
static inline void ptx_barrier_cluster_wait_acquire_aligned(void) {
    emu_cluster_wait();
}

/* ---- Barriers in memory */
static inline void ptx_mbarrier_init_shared_cta_b64(uint32_t bar, int arrivals) {
    emu_mbarrier_init(bar, arrivals);
}
static inline void ptx_mbarrier_arrive_shared_cta_b64(uint32_t bar) {
    emu_mbarrier_arrive(bar, 0);
}
static inline void ptx_mbarrier_arrive_shared_cluster_b64(uint32_t bar) {
    emu_mbarrier_arrive(bar, 0);
}
static inline void ptx_mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t bar, uint32_t bytes) {
    emu_mbarrier_arrive(bar, bytes);
}
static inline void ptx_mbarrier_try_wait_parity_shared_cta_b64(bool &p, uint32_t bar,
                                                               uint32_t parity) {
    p = emu_mbarrier_wait(bar, parity);
}
static inline void ptx_st_async_shared_cluster_mbarrier_complete_tx_bytes_v2_f32(uint32_t dst,
                                                                                 float a, float b,
                                                                                 uint32_t bar) {
    const float values[] = {a, b};
    emu_store_async(dst, values, 2, bar);
}
static inline void ptx_st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(uint32_t dst,
                                                                                 float a, float b,
                                                                                 float c, float d,
                                                                                 uint32_t bar) {
    const float values[] = {a, b, c, d};
    emu_store_async(dst, values, 4, bar);
}

/* ---- The copy engine: to shared memory */
static inline void
ptx_cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t dst, const void *src,
                                                                   uint32_t bytes, uint32_t bar) {
    emu_bulk_load(dst, src, bytes, bar);
}
static inline void ptx_cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, uint64_t) {
    emu_bulk_load(dst, src, bytes, bar);
}
static inline void ptx_cp_async_bulk_shared_cluster_shared_cta_mbarrier_complete_tx_bytes(
    uint32_t dst, uint32_t src, uint32_t bytes, uint32_t bar) {
    emu_bulk_send(dst, src, bytes, bar);
}
static inline void
ptx_cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(uint32_t dst,
                                                                                  const void *map,
                                                                                  int x, int y,
                                                                                  uint32_t bar) {
    const int at[] = {x, y};
    emu_tensor_load(dst, map, bar, 2, at, 0);
}
static inline void
ptx_cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    uint32_t dst, const void *map, int x, int y, uint32_t bar, uint64_t) {
    const int at[] = {x, y};
    emu_tensor_load(dst, map, bar, 2, at, 0);
}
static inline void
ptx_cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t dst, const void *map, int x, int y, uint32_t bar, uint16_t blocks) {
    const int at[] = {x, y};
    emu_tensor_load(dst, map, bar, 2, at, blocks);
}
static inline void
ptx_cp_async_bulk_tensor_3d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(
    uint32_t dst, const void *map, int x, int y, int z, uint32_t bar) {
    const int at[] = {x, y, z};
    emu_tensor_load(dst, map, bar, 3, at, 0);
}
static inline void
ptx_cp_async_bulk_tensor_3d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    uint32_t dst, const void *map, int x, int y, int z, uint32_t bar, uint64_t) {
    const int at[] = {x, y, z};
    emu_tensor_load(dst, map, bar, 3, at, 0);
}
static inline void
ptx_cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(
    uint32_t dst, const void *map, int x, int y, int z, int w, uint32_t bar) {
    const int at[] = {x, y, z, w};
    emu_tensor_load(dst, map, bar, 4, at, 0);
}
static inline void
ptx_cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t dst, const void *map, int x, int y, int z, int w, uint32_t bar, uint16_t blocks) {
    const int at[] = {x, y, z, w};
    emu_tensor_load(dst, map, bar, 4, at, blocks);
}

/* ---- The copy engine: to global memory */
static inline void ptx_cp_async_bulk_global_shared_cta_bulk_group(void *dst, uint32_t src,
                                                                  uint32_t bytes) {
    emu_bulk_store(dst, src, bytes, EMU_COPY);
}
static inline void ptx_cp_reduce_async_bulk_global_shared_cta_bulk_group_add_s32(void *dst,
                                                                                 uint32_t src,
                                                                                 uint32_t bytes) {
    emu_bulk_store(dst, src, bytes, EMU_ADD);
}
static inline void ptx_cp_async_bulk_tensor_2d_global_shared_cta_tile_bulk_group(const void *map,
                                                                                 int x, int y,
                                                                                 uint32_t src) {
    const int at[] = {x, y};
    emu_tensor_store(map, src, 2, at, EMU_COPY);
}
static inline void ptx_cp_async_bulk_tensor_3d_global_shared_cta_tile_bulk_group(const void *map,
                                                                                 int x, int y,
                                                                                 int z,
                                                                                 uint32_t src) {
    const int at[] = {x, y, z};
    emu_tensor_store(map, src, 3, at, EMU_COPY);
}
static inline void ptx_cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group(const void *map,
                                                                                 int x, int y,
                                                                                 int z, int w,
                                                                                 uint32_t src) {
    const int at[] = {x, y, z, w};
    emu_tensor_store(map, src, 4, at, EMU_COPY);
}
static inline void
ptx_cp_reduce_async_bulk_tensor_2d_global_shared_cta_add_tile_bulk_group(const void *map, int x,
                                                                         int y, uint32_t src) {
    const int at[] = {x, y};
    emu_tensor_store(map, src, 2, at, EMU_ADD);
}
static inline void ptx_cp_reduce_async_bulk_tensor_3d_global_shared_cta_add_tile_bulk_group(
    const void *map, int x, int y, int z, uint32_t src) {
    const int at[] = {x, y, z};
    emu_tensor_store(map, src, 3, at, EMU_ADD);
}
static inline void ptx_cp_async_bulk_commit_group(void) {
    emu_bulk_commit();
}
static inline void ptx_cp_async_bulk_wait_group_read(int groups) {
    emu_bulk_wait(groups, true);
}
static inline void ptx_cp_async_bulk_wait_group(int groups) {
    emu_bulk_wait(groups, false);
}

/* ---- Words shared by blocks */
static inline void ptx_red_release_gpu_global_add_u32(uint32_t *p, uint32_t x) {
    emu_release();
    (void)__atomic_fetch_add(p, x, __ATOMIC_RELEASE);
}
static inline void ptx_ld_acquire_gpu_global_u32(uint32_t &x, const uint32_t *p) {
    emu_spin();
    x = __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void ptx_ld_relaxed_gpu_global_v4_s32(int &x, int &y, int &z, int &w, const void *p) {
    emu_spin();
    typedef int all __attribute__((vector_size(16)));
    const all v = *(const volatile all *)p; /* One instruction of the host. */
    x = v[0], y = v[1], z = v[2], w = v[3];
}

/* ---- Two 8-bit floats */
static inline void ptx_cvt_rn_satfinite_e4m3x2_f32(uint16_t &y, float hi, float lo) {
    y = (uint16_t)(emu_f32_to_f8(hi, false) << 8 | emu_f32_to_f8(lo, false));
}
static inline void ptx_cvt_rn_satfinite_e5m2x2_f32(uint16_t &y, float hi, float lo) {
    y = (uint16_t)(emu_f32_to_f8(hi, true) << 8 | emu_f32_to_f8(lo, true));
}
static inline void ptx_cvt_rn_f16x2_e4m3x2(uint32_t &y, uint16_t x) {
    y = (uint32_t)emu_f32_to_f16(emu_f8_to_f32((uint8_t)(x >> 8), false)) << 16 |
        emu_f32_to_f16(emu_f8_to_f32((uint8_t)x, false));
}

/* ---- 8x8 matrices to shared memory */
struct emu_stmatrix {
    uint16_t *row; /* Row lane % 8 of matrix lane / 8. */
    uint32_t r[4];
};
template <bool TRANS> static void emu_stmatrix_all(void *const lanes[EMU_WARP], unsigned mask) {
    if (mask != 0xffffffffu) {
        emu_trap("stmatrix with lanes %08x only", mask);
    }
    for (int lane = 0; lane < EMU_WARP; lane++) {
        const emu_stmatrix *const mine = (emu_stmatrix *)lanes[lane];
        for (int i = 0; i < 4; i++) {
            for (int e = 0; e < 2; e++) {
                const int row = TRANS ? 2 * (lane % 4) + e : lane / 4;
                const int col = TRANS ? lane / 4 : 2 * (lane % 4) + e;
                ((emu_stmatrix *)lanes[8 * i + row])->row[col] = (uint16_t)(mine->r[i] >> 16 * e);
            }
        }
    }
}
static inline void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t p, uint32_t a, uint32_t b,
                                                                uint32_t c, uint32_t d) {
    emu_stmatrix m = {(uint16_t *)emu_shared_pointer(p, 16), {a, b, c, d}};
    emu_warp(0xffffffffu, emu_stmatrix_all<false>, &m, "stmatrix");
}
static inline void ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t p, uint32_t a,
                                                                      uint32_t b, uint32_t c,
                                                                      uint32_t d) {
    emu_stmatrix m = {(uint16_t *)emu_shared_pointer(p, 16), {a, b, c, d}};
    emu_warp(0xffffffffu, emu_stmatrix_all<true>, &m, "stmatrix.trans");
}

/* ---- Products of a warpgroup. Operands: n / 2 values of D; the descriptor of A, or four words;
 * the descriptor of B; whether to add; the signs 1 and 1; and for 16-bit types, whether each
 * operand in shared memory is transposed. */
static inline void ptx_wgmma_commit_group_sync_aligned(void) {
    emu_wgmma_commit();
}
static inline void ptx_wgmma_wait_group_sync_aligned(int groups) {
    emu_wgmma_wait(groups);
}
template <class T> static inline uint64_t emu_operand(const T &x) {
    return (uint64_t)x;
}
static inline uint64_t emu_operand(const float &) { /* For D its place matters. */
    return 0;
}
template <class... T>
static inline void emu_ptx_wgmma(emu_type16 a, emu_type16 b, int n, T &...operands) {
    const void *const at[] = {(const void *)&operands...};
    const uint64_t words[] = {emu_operand(operands)...};
    const int rest = (int)sizeof...(T) - n / 2, wide = a == EMU_BF16 || a == EMU_F16;
    const bool held = rest == (wide ? 9 : 8);
    const uint64_t *const w = words + n / 2, *const behind = w + (held ? 4 : 1);
    emu_wgmma mine = {
        (float *)(uintptr_t)at[0], n, a, b, held, false, false, behind[1] != 0, {}, 0, behind[0]};
    if ((!held && rest != (wide ? 7 : 5)) || (const float *)at[n / 2 - 1] != mine.d + n / 2 - 1) {
        emu_trap("wgmma: %d operands after D, or D is not an array", rest);
    }
    for (int i = 0; i < 4 && held; i++) {
        mine.a[i] = (uint32_t)w[i];
    }
    mine.a_place = held ? 0 : w[0];
    if (wide) {
        mine.a_transposed = !held && behind[4] != 0;
        mine.b_transposed = behind[held ? 4 : 5] != 0;
    }
    emu_wgmma_issue(&mine);
}
#define EMU_WGMMA(name, a, b)                                                                      \
    template <class... T> static inline void name(int n, T &&...operands) {                        \
        emu_ptx_wgmma(a, b, n, operands...);                                                       \
    }
EMU_WGMMA(ptx_wgmma_mma_async_sync_aligned_m64nNk16_f32_bf16_bf16, EMU_BF16, EMU_BF16)
EMU_WGMMA(ptx_wgmma_mma_async_sync_aligned_m64nNk16_f32_f16_f16, EMU_F16, EMU_F16)
EMU_WGMMA(ptx_wgmma_mma_async_sync_aligned_m64nNk32_f32_e4m3_e4m3, EMU_E4M3, EMU_E4M3)
EMU_WGMMA(ptx_wgmma_mma_async_sync_aligned_m64nNk32_f32_e5m2_e4m3, EMU_E5M2, EMU_E4M3)
#undef EMU_WGMMA

#endif
