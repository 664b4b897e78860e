/* launch.h: runs a grid, its blocks on threads of the host. */
#ifndef LT_EMU_LAUNCH_H
#define LT_EMU_LAUNCH_H

#include "emu.h"

/* Returns when every block has run. Launches from several host threads run one after the
 * other. */
void emu_launch(const char *name, const emu_entry *entry, void **args, emu_dim3 grid,
                emu_dim3 block, emu_dim3 cluster, size_t dynamic_bytes);

#endif
