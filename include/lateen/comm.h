/* comm.h: messages between the ranks of a run.
 *
 * A world is a set of ranks; each rank holds its own handle on it, an lt_comm. Ranks that call
 * together form a group, whose members are numbered 0 to n - 1 in the order of its list. All
 * members of a group make each call (two of them for send and receive), with the same verb, count,
 * type and root. A mismatch fails, and the message names the members that differ.
 *
 *     lt_comm_run_threads(4, &options, rank_main, ctx);           ranks as threads of this process
 *     lt_group_open(&g, comm, "dp", ranks, 4);                    in each of them
 *     lt_all_reduce(g, grad, grad, n, LT_F32, LT_REDUCE_SUM, &work);
 *     ... compute ...
 *     lt_comm_wait(comm, work);
 *
 * ASYNCHRONY   With a `work`, a call returns at once and its buffers must not be touched until
 *              lt_comm_wait has returned. With NULL it returns when it is done. The collectives of
 *              a rank run in the order of their calls, whatever their groups. Sends and receives
 *              run concurrently with them and with each other, except that those between the same
 *              two members of a group run in the order of their calls.
 * SUMS         are computed in F32 (in F64 for F64, in the integer type for integers) in the order
 *              of the members and rounded once, so they depend neither on timing nor on the
 *              transport, and every member gets the same bits.
 * FAILURES     No call waits longer than its deadline. A call that misses it fails with REMOTE on
 *              every member that arrived; the message names the members that did not, the verb and
 *              the number of the call. After a failure or lt_comm_abort, every call of the rank
 *              fails; only a new world, with a new epoch, can go on. Each rank keeps a record of
 *              its last LT_COMM_RECORDS calls and writes them to record_dir when one fails;
 *              lt_comm_blame compares the files of all ranks. */
#ifndef LATEEN_COMM_H
#define LATEEN_COMM_H

#include "lateen/device.h"
#include "lateen/tensor.h"

#define LT_COMM_RECORDS   2048
#define LT_COMM_MAX_RANKS 4096
#define LT_COMM_NAME      24  /* Bytes of a group's name, with its terminating 0. */
#define LT_COMM_AHEAD     256 /* Most calls in flight on one rank; the next one waits. */

typedef struct lt_comm lt_comm;
typedef struct lt_group lt_group;
typedef struct lt_queue lt_queue; /* A queue of a device's work. */
typedef struct lt_timeline lt_timeline;
/* A call in flight: its number among the calls of its rank, from 1. */
typedef uint64_t lt_comm_work;

typedef enum { LT_REDUCE_SUM, LT_REDUCE_MAX, LT_REDUCE_MIN } lt_reduce;

typedef struct {
    double deadline_s; /* Deadline of each call, from its start on this rank; 0: 30 s. */
    /* Folder for the records of calls after a failure; NULL: none are written. */
    const char *record_dir;
    uint64_t epoch; /* Number of this world, which is in every record. */
    /* Between processes: members compare their calls before any data moves, and a mismatch is
     * reported. Threads always compare them. */
    bool check;
    /* Between GPUs: NCCL itself sums, in its own types and in the order that it chooses. */
    bool any_order;
    /* Between GPUs: NCCL makes every transfer, including those that copy engines could make (as
     * with LATEEN_PEER_COPIES=0). */
    bool nccl_only;
    /* Between GPUs: lt_group_open waits for no other rank; groups are usable after
     * lt_comm_connect. */
    bool connect_late;
} lt_comm_options;

/* Run fn once for each rank, each in a thread of its own, and wait for all of them. On a failure
 * the other ranks are aborted and the first error is returned, with the message "rank R: ...". */
LT_MUST_USE lt_err lt_comm_run_threads(int n_ranks, const lt_comm_options *o,
                                       lt_err (*fn)(lt_comm *c, void *ctx), void *ctx);

/* lt_comm_open opens the world that this process was started in: started by `lateen launch`, the
 * process is a rank on this machine and shares memory with the others (_shm), or, with --hosts, a
 * rank on one of several machines, connected with the others by TCP (_tcp); started by mpirun or
 * srun, it is a rank of their world (_mpi); otherwise it is the only rank (_self). Open MPI is
 * loaded at run time; UNSUPPORTED where it is missing or another MPI is found. Call open once a
 * process. close accepts NULL; it is a collective call unless the world has failed. */
LT_MUST_USE lt_err lt_comm_open(lt_comm **out, const lt_comm_options *o);
LT_MUST_USE lt_err lt_comm_open_self(lt_comm **out, const lt_comm_options *o);
LT_MUST_USE lt_err lt_comm_open_shm(lt_comm **out, const lt_comm_options *o);
LT_MUST_USE lt_err lt_comm_open_tcp(lt_comm **out, const lt_comm_options *o);
LT_MUST_USE lt_err lt_comm_open_mpi(lt_comm **out, const lt_comm_options *o);
/* Open a world of the same ranks whose buffers are in GPU memory, one GPU for each rank, and whose
 * verbs run on a queue of that GPU. It uses NCCL, opened at run time (UNSUPPORTED if it is missing
 * or older than 2.18). `host` carries what ranks tell each other about their calls; it outlives
 * this world and fails with it. A collective call of all ranks. LT_COMM_RECORDS, deadlines, sums
 * and failures are as in any other world. */
LT_MUST_USE lt_err lt_comm_open_device(lt_comm **out, lt_comm *host, lt_device *device,
                                       const lt_comm_options *o);
/* The memory in which each of n ranks computes the sums of such a world: bytes on the GPU, and on
 * the host. NCCL's own buffers are not counted. */
typedef struct {
    size_t device_bytes, host_bytes;
} lt_comm_memory;
lt_comm_memory lt_comm_device_measure(int n_ranks);
/* Bytes that one of n GPUs of a machine copies to another at a time in collectives. */
size_t lt_comm_device_piece(int n_ranks);
/* A collective call of all ranks, once, after which no group is opened: makes NCCL's communicators
 * of a world that was opened with connect_late. All ranks have opened their groups of more than one
 * member in the same order. */
LT_MUST_USE lt_err lt_comm_connect(lt_comm *c);
bool lt_comm_under_launch(void); /* Whether `lateen launch` started this process. */
bool lt_comm_under_mpi(void);    /* Whether mpirun, or srun with PMIx, started this process. */
bool lt_comm_is_rank(void);      /* Whether any of them did. */
/* The rank and the number of ranks that the starter gave this process, before a world is open; 0 of
 * 1 if there was none. UNSUPPORTED: the number is not known. */
LT_MUST_USE lt_err lt_comm_started_as(int *rank, int *n_ranks);
void lt_comm_close(lt_comm *c);

int lt_comm_rank(const lt_comm *c);
int lt_comm_size(const lt_comm *c);
const char *lt_comm_transport(const lt_comm *c); /* "self", "thread", ... */
lt_comm_options lt_comm_options_of(const lt_comm *c);

/* Open a group of ranks of the world. The list holds each rank once and this rank among them; every
 * member passes the same name and list. Groups live as long as their world. ARG for a bad list. */
LT_MUST_USE lt_err lt_group_open(lt_group **out, lt_comm *c, const char *name, const int *ranks,
                                 int n);
int lt_group_rank(const lt_group *g); /* This rank's number in the group. */
int lt_group_size(const lt_group *g);
const char *lt_group_name(const lt_group *g);
const int *lt_group_ranks(const lt_group *g); /* (size): the members' ranks in the world. */
lt_comm *lt_group_comm(const lt_group *g);

/* dst (count) = reduction of all members' src (count). dst may be src. */
LT_MUST_USE lt_err lt_all_reduce(lt_group *g, void *dst, const void *src, int64_t count,
                                 lt_dtype dtype, lt_reduce op, lt_comm_work *work);
/* Reduce all members' src (n, count); member i receives row i of the result in dst (count). dst may
 * be row i of its own src. */
LT_MUST_USE lt_err lt_reduce_scatter(lt_group *g, void *dst, const void *src, int64_t count,
                                     lt_dtype dtype, lt_reduce op, lt_comm_work *work);
/* Say that row `member` of the src of this group's next reduce_scatter is complete (on a device:
 * after the work that the followed queue holds) and may go to that member while other rows are
 * still being computed. This is not a call: members need not do the same, and a transport without a
 * use for it ignores it. Until that reduce_scatter the members call no other collective
 * together. */
LT_MUST_USE lt_err lt_reduce_scatter_early(lt_group *g, int member, const void *src, int64_t count,
                                           lt_dtype dtype);
/* Row i of dst (n, count) becomes member i's src (count). src may be this member's row of dst. */
LT_MUST_USE lt_err lt_all_gather(lt_group *g, void *dst, const void *src, int64_t count,
                                 lt_dtype dtype, lt_comm_work *work);
/* Copy data (count) of member root to all members. */
LT_MUST_USE lt_err lt_broadcast(lt_group *g, void *data, int64_t count, lt_dtype dtype, int root,
                                lt_comm_work *work);
/* Send send_counts[j] elements of src to member j and receive recv_counts[i] elements from member i
 * into dst; both buffers are contiguous, in the order of the members. If i sends to j another count
 * than j expects from i, both fail. src and dst must not overlap; the counts are read before the
 * call returns. */
LT_MUST_USE lt_err lt_all_to_all(lt_group *g, void *dst, const int64_t *recv_counts,
                                 const void *src, const int64_t *send_counts, lt_dtype dtype,
                                 lt_comm_work *work);
LT_MUST_USE lt_err lt_send(lt_group *g, int to, const void *src, int64_t count, lt_dtype dtype,
                           lt_comm_work *work);
LT_MUST_USE lt_err lt_recv(lt_group *g, int from, void *dst, int64_t count, lt_dtype dtype,
                           lt_comm_work *work);
LT_MUST_USE lt_err lt_barrier(lt_group *g);

/* Wait until this call of the rank is done and return its error. A call may be waited for once,
 * several times or never. */
LT_MUST_USE lt_err lt_comm_wait(lt_comm *c, lt_comm_work work);
/* The same for a queue of the device: work that is queued on q from now on waits for this call. The
 * host waits only until the call has been queued. In a world of host memory it is lt_comm_wait. */
LT_MUST_USE lt_err lt_comm_order(lt_comm *c, lt_comm_work work, lt_queue *q);
/* The same for a member's row of dst of an all_gather, which may be complete before others are:
 * first that of the member before this one, last that of the member after it. */
LT_MUST_USE lt_err lt_comm_order_member(lt_comm *c, lt_comm_work work, int member, lt_queue *q);
/* Verbs called from now on wait for the work that q holds at that time; NULL: they do not wait. */
void lt_comm_follow(lt_comm *c, lt_queue *q);
/* Whether it has finished or failed. Never waits. */
bool lt_comm_done(lt_comm *c, lt_comm_work work);

/* Every wait for a call, by the thread that made it, becomes a span of this timeline
 * (tensor/timeline.h): of its queue by lt_comm_order, of the host by lt_comm_wait. NULL: none. */
void lt_comm_tell_waits(lt_comm *c, lt_timeline *t);
/* Measure the calls from now on, or no longer. Between GPUs each call then costs two marks on its
 * queue; worlds of host memory always measure. in_place: relate the GPU's times to the clock of
 * this host, for which the call waits until the queue of transfers is idle. */
LT_MUST_USE lt_err lt_comm_measure(lt_comm *c, bool on, bool in_place);
/* Seconds in which at least one of the measured calls that have ended since the last lt_comm_moved
 * was in progress, including waits for other members. A receive counts only at its sender. */
double lt_comm_moved(lt_comm *c);
/* One of the last LT_COMM_RECORDS calls. Times are on the clock of lt_clock_ns; 0: not reached. */
typedef struct {
    lt_comm_work call;
    char verb[16], group[LT_COMM_NAME];
    int members, peer; /* peer: root of a broadcast, other member of a send or receive; else -1. */
    bool is_pair;      /* A send or receive, which can run at the same time as other calls. */
    int64_t bytes;
    uint64_t issued_ns, started_ns, done_ns;
} lt_comm_call;
lt_comm_work lt_comm_last(lt_comm *c); /* The newest call of this rank; 0: none. */
/* False: it has not ended, or is too old. */
bool lt_comm_recall(lt_comm *c, lt_comm_work work, lt_comm_call *out);

/* End this world, from any thread: every call in flight on any rank fails at once with REMOTE and
 * the reason, and so does every later one. The first reason is kept. */
void lt_comm_abort(lt_comm *c, const char *reason);

/* Explain why a world ended, from the records of its ranks in a folder: which ranks left no record,
 * which never made a call that others had begun, and which made a different one. Writes lines of
 * text into out, truncated to out_bytes. */
LT_MUST_USE lt_err lt_comm_blame(const char *dir, char *out, size_t out_bytes);

/* ---- The mesh ----------------------------------------------------------------------------------
 * The ranks form a grid with named axes, outermost first: pp, dp, cp, tp. The last axis varies
 * fastest, so ranks of a tensor-parallel group are neighbours. ep divides dp x cp: experts are
 * divided over ep neighbours in that plane. The group of an axis holds the ranks that differ from
 * this one in that coordinate only. */
#define LT_MESH_AXES(X) X(pp) X(dp) X(cp) X(tp)
typedef struct {
#define LT_MESH_FIELD(axis) lt_group *axis;
    LT_MESH_AXES(LT_MESH_FIELD)
#undef LT_MESH_FIELD
    lt_group *world; /* All ranks of the mesh. */
    lt_group *grad;  /* dp x cp: the ranks that hold the same weights; ZeRO divides these. */
    lt_group *ep;    /* Neighbours in grad among which one set of experts is divided. */
    lt_group *edp;   /* The ranks of grad that hold the same experts. */
} lt_mesh;

typedef struct {
    int pp, dp, cp, tp, ep; /* Each at least 1. */
} lt_mesh_shape;

/* Parse "dp=2,tp=4": axes in any order, each at most once; an axis that is not named is 1. The
 * message of ARG says what is wrong. */
LT_MUST_USE lt_err lt_mesh_parse(lt_mesh_shape *out, const char *text);
/* The divisor of count that is nearest to n, the smaller of two. */
int64_t lt_mesh_divisor(int64_t count, int64_t n);
/* ARG unless the product of the axes is n_ranks and ep divides dp * cp. The message names both
 * numbers and the nearest data-parallel size that fits. */
LT_MUST_USE lt_err lt_mesh_check(const lt_mesh_shape *s, int n_ranks);
/* Open the mesh of the ranks starting at `first`, as many as the shape has; a world may have
 * several meshes. */
LT_MUST_USE lt_err lt_mesh_open(lt_mesh *out, lt_comm *c, const lt_mesh_shape *s, int first);

#endif
