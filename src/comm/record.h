/* record.h: the last calls of a rank, written to a file when its world fails.
 *
 * DIR/rank-R.jsonl: the first line is {"epoch", "rank", "size", "reason"}, each further line is one
 * call, the oldest first: {"call", "group", "members", "kind", "seq", "peer", "bytes", "dtype",
 * "state", "issued_us", "started_us", "done_us"}, times on the rank's own clock, 0 where not
 * reached. The file is written under another name and then renamed, so it is complete or absent. */
#ifndef LT_COMM_RECORD_H
#define LT_COMM_RECORD_H

#include "lateen/comm.h"

#define LT_COMM_WHY 512

#define LT_CALL_MAP(X)                                                                             \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BARRIER, "barrier")                                                                          \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")
typedef enum {
#define LT_CALL_ENUM(kind, name) LT_CALL_##kind,
    LT_CALL_MAP(LT_CALL_ENUM)
#undef LT_CALL_ENUM
        LT_CALL_KINDS
} lt_call_kind;

#define LT_CALL_STATE_MAP(X)                                                                       \
    X(QUEUED, "queued") X(STARTED, "started") X(DONE, "done") X(FAILED, "failed")
typedef enum {
#define LT_CALL_STATE_ENUM(state, name) LT_CALL_##state,
    LT_CALL_STATE_MAP(LT_CALL_STATE_ENUM)
#undef LT_CALL_STATE_ENUM
        LT_CALL_STATES
} lt_call_state;

const char *lt_call_kind_name(lt_call_kind kind);
const char *lt_call_state_name(lt_call_state state);

typedef struct {
    uint64_t call, seq;
    char group[LT_COMM_NAME];
    int members, peer;
    lt_call_kind kind;
    lt_call_state state;
    lt_dtype dtype;
    uint64_t bytes;
    uint64_t issued_ns, started_ns, done_ns;
} lt_record;

typedef struct {
    lt_record *ring; /* (LT_COMM_RECORDS): call k is in slot k % LT_COMM_RECORDS. */
    uint64_t n;      /* Calls so far. */
} lt_records;

LT_MUST_USE lt_err lt_records_open(lt_records *r);
void lt_records_close(lt_records *r);
lt_record *lt_records_of(lt_records *r, uint64_t call); /* NULL: the record has been overwritten. */
LT_MUST_USE lt_err lt_records_write(const lt_records *r, const char *dir, uint64_t epoch, int rank,
                                    int size, const char *reason);

#define LT_RECORDS_DEVICE "device"         /* Subfolder of DIR: records of calls on GPUs. */
#define LT_RECORDS_BEFORE "records-before" /* Subfolder of DIR: the records of an earlier start. */
/* Move the records in `dir`, and those of its devices, to dir/records-before, replacing what is
 * there, and remove incomplete ones. A start thus begins without records, and blame never compares
 * those of two starts. */
LT_MUST_USE lt_err lt_records_put_aside(const char *dir);

#endif
