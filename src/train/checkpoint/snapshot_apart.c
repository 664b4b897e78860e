/* snapshot_apart.c: snapshots of ranks on several machines (snapshot.h). No machine sees the memory
 * of another one; agents copy what is written there (platform/agent/agent.h), but may lag.
 *
 *     agree     the newest snapshot that some rank finds whole counts. Machines that lack it, or
 *               that hold another one of the same step, from an earlier attempt, get it from the
 *               first rank that has it, over the world that has just been opened
 *     gather    the leading rank reads the manifests of all parts when it puts a snapshot together,
 *               so those of other machines are sent to it: a few bytes for each parameter */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/error.h"
#include "train/checkpoint/checkpoint_parts.h"
#include "train/run.h"

#define PIECE_BYTES ((size_t)16 << 20)
#define NAME_BYTES  256

/* ---- Files between machines ------------------------------------------------------------------ */

/* The same on all ranks. */
static lt_err share_number(const lt_world *w, int64_t *number, int from) {
    return lt_broadcast(w->mesh.world, number, 1, LT_I64, from, NULL);
}

static lt_err everyone_is_here(const lt_world *w) {
    double least, most;
    return lt_world_range(w, 0.0, &least, &most);
}

/* Share the bytes of a file that rank `from` has mapped. to: NULL if this rank does not need it. */
static lt_err share_bytes(const lt_world *w, int from, const lt_file_map *map, int64_t bytes,
                          FILE *to, bool *whole) {
    lt_err err = LT_OK;
    char *piece = malloc(PIECE_BYTES);
    if (piece == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes of a snapshot", PIECE_BYTES);
    }
    for (int64_t at = 0; at < bytes; at += (int64_t)PIECE_BYTES) {
        const size_t left = (size_t)(bytes - at), n = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (lt_group_rank(w->mesh.world) == from) {
            memcpy(piece, (const char *)map->data + at, n);
        }
        LT_TRY_DONE(lt_broadcast(w->mesh.world, piece, (int64_t)n, LT_U8, from, NULL));
        *whole = *whole && (to == NULL || fwrite(piece, 1, n, to) == n);
    }
done:
    free(piece);
    return err;
}

/* Copy a file of rank `from` to `folder`, on the ranks that name one. A file that cannot be read or
 * written is noticed when the snapshot is verified. */
static lt_err share_file(const lt_world *w, int from, const char *source, const char *name,
                         const char *folder) {
    const bool gives = lt_group_rank(w->mesh.world) == from;
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], plain[NAME_BYTES] = "";
    lt_file_map map = {0};
    bool whole = true;
    int64_t bytes = -1;
    FILE *to = NULL;
    if (gives) {
        (void)snprintf(plain, sizeof plain, "%s", name);
        if (lt_path_join(path, source, name) == LT_OK && lt_file_map_open(&map, path) == LT_OK) {
            bytes = (int64_t)map.size_bytes;
        }
    }
    LT_TRY_DONE(lt_broadcast(w->mesh.world, plain, NAME_BYTES, LT_U8, from, NULL));
    LT_TRY_DONE(share_number(w, &bytes, from));
    if (folder != NULL && lt_path_join(path, folder, plain) == LT_OK) {
        to = fopen(path, "wbe");
    }
    LT_TRY_DONE(share_bytes(w, from, &map, bytes, to, &whole));
    if (!whole) {
        lt_log_warn("%s could not be written whole", path);
    }
done:
    if (to != NULL && fclose(to) != 0) {
        lt_log_warn("%s could not be written whole", path);
    }
    lt_file_map_close(&map);
    return err;
}

/* ---- The choice ------------------------------------------------------------------------------ */

/* Hash of the manifest, which lists the checksums of all other files; 0: there is none. */
static uint64_t contents_of(const char *folder) {
    char path[LT_PATH_BYTES];
    lt_file_map map;
    uint64_t hash;
    if (lt_path_join(path, folder, LT_MANIFEST) != LT_OK || lt_file_map_open(&map, path) != LT_OK) {
        return 0;
    }
    hash = XXH3_64bits(map.data, map.size_bytes);
    lt_file_map_close(&map);
    return hash;
}

/* Rank `from` sends the folder's files; on each machine that lacks them, one rank writes them. */
static lt_err bring(const lt_snapshots *s, const lt_world *w, int from, bool writes,
                    const char *folder) {
    lt_err err = LT_OK;
    char aside[LT_PATH_BYTES], **names = NULL;
    size_t count = 0;
    int64_t n;
    if (lt_group_rank(w->mesh.world) == from) {
        LT_TRY_DONE(lt_file_list(&names, &count, folder));
    }
    n = (int64_t)count;
    LT_TRY_DONE(lt_path_join(aside, s->memory.set, "brought"));
    if (writes) {
        LT_TRY_DONE(lt_file_make_dirs(aside));
    }
    LT_TRY_DONE(share_number(w, &n, from));
    for (int64_t i = 0; i < n; i++) {
        LT_TRY_DONE(
            share_file(w, from, folder, names != NULL ? names[i] : "", writes ? aside : NULL));
    }
    if (writes) {
        LT_TRY_DONE(lt_file_remove_tree(folder));
        if (rename(aside, folder) != 0) {
            LT_FAIL_DONE(LT_ERR_IO, "rename %s to %s", aside, folder);
        }
    }
done:
    lt_file_list_free(names, count);
    return err;
}

lt_err lt_snapshot_agree_apart(lt_snapshots *s, const lt_world *w) {
    const bool first = lt_world_local_rank(w) == 0; /* Of this machine. */
    const int n = lt_group_size(w->mesh.world), rank = lt_group_rank(w->mesh.world);
    int64_t lead = s->memory.node, contents;
    char folder[LT_PATH_BYTES] = "";
    double least, newest, from, lacking, own;
    bool lacks;

    LT_TRY(share_number(w, &lead, 0));
    s->near = lead == s->memory.node;
    if (first && lt_memory_assemble(s->memory.root) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    LT_TRY(everyone_is_here(w));
    own = (double)lt_snapshot_newest(s->memory.set, INT32_MAX);
    LT_TRY(lt_world_range(w, own, &least, &newest));
    if (newest < 0.0) {
        return LT_OK;
    }
    LT_TRY(lt_checkpoint_path(folder, s->memory.set, (int64_t)newest));
    LT_TRY(lt_world_range(w, own == newest ? rank : n, &from, &lacking));
    contents = (int64_t)contents_of(folder);
    LT_TRY(share_number(w, &contents, (int)from));
    lacks = own != newest || (int64_t)contents_of(folder) != contents;
    LT_TRY(lt_world_range(w, lacks, &least, &lacking));
    if (lacking > 0.0) {
        if (rank == 0) {
            lt_log_info("not every machine has the snapshot of step %lld: rank %d sends it",
                        (long long)newest, (int)from);
        }
        LT_TRY(bring(s, w, (int)from, first && lacks, folder));
        LT_TRY(everyone_is_here(w));
        LT_TRY(lt_world_range(w, !lacks || lt_checkpoint_verify(folder) == LT_OK, &least, &own));
        if (least < 1.0) {
            lt_log_warn("the snapshot of step %lld did not come whole to all machines; the run "
                        "goes on from disk",
                        (long long)newest);
            return LT_OK;
        }
    }
    s->from = (int64_t)newest;
    return LT_OK;
}

/* ---- Parts ----------------------------------------------------------------------------------- */

lt_err lt_snapshot_gather_parts(lt_training *t) {
    const lt_snapshots *s = &t->snapshots;
    const lt_world *w = t->world;
    const int n = lt_group_size(w->mesh.world);
    lt_err err = LT_OK;
    char holder[LT_PATH_BYTES], folder[LT_PATH_BYTES], set[LT_PATH_BYTES];
    int n_parts;
    int64_t part = lt_shards_part(&t->shards, &n_parts), *parts = calloc((size_t)n, sizeof *parts);
    if (parts == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d ranks", n);
    }
    part = s->near ? -1 : part;
    LT_TRY_DONE(lt_all_gather(w->mesh.world, parts, &part, 1, LT_I64, NULL));
    if (snprintf(holder, sizeof holder, "%s/rank-%d", s->memory.own, t->ranks.rank) >=
        LT_PATH_BYTES) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "path too long: %s", s->memory.own);
    }
    LT_TRY_DONE(lt_checkpoint_path(folder, holder, t->state.step));
    LT_TRY_DONE(lt_checkpoint_aside(set, s->memory.set, t->state.step, &t->lease));
    for (int i = 0; i < n; i++) {
        char name[LT_PART_NAME_BYTES];
        lt_part_file(name, "part", (int)parts[i], n_parts, ".json");
        LT_TRY_DONE(parts[i] < 0
                        ? LT_OK
                        : share_file(w, i, folder, name, lt_ranks_lead(&t->ranks) ? set : NULL));
    }
done:
    free(parts);
    return err;
}
