/* comm.h: messages between the ranks of a run.
 *
 * A world is a number of ranks, each with its end of it, an lt_comm. Ranks that call together form
 * a group; a group's members are numbered 0 to n - 1 in the order of its list. Every verb is called
 * by all members of a group (send and receive by two of them) with the same verb, count, type and
 * root; members that differ are told so by name.
 *
 *     lt_comm_run_threads(4, &options, rank_main, ctx);           ranks as threads of this process
 *     lt_group_open(&g, comm, "dp", ranks, 4);                    in each of them
 *     lt_all_reduce(g, grad, grad, n, LT_F32, LT_REDUCE_SUM, &work);
 *     ... compute ...
 *     lt_comm_wait(comm, work);
 *
 * ASYNCHRONY   With a `work` a verb returns at once; its buffers belong to it until lt_comm_wait
 *              has returned. With NULL it returns when it is done. Collectives of a rank run in the
 *              order of their calls, whatever their groups; sends and receives run beside them and
 *              beside each other, but those between the same two members of a group in the order
 *              of their calls.
 * SUMS         are made in F32 (F64 of F64; whole numbers as they are) in the order of the members
 *              and rounded once, so they depend neither on timing nor on the transport, and every
 *              member gets the same bits.
 * FAILURES     No verb waits longer than its deadline. One that is missed fails with REMOTE on
 *              every member that came; the message names the members that did not come, the verb
 *              and its number. After a failure or lt_comm_abort every verb of the rank fails: the
 *              only way on is a new world, with a new epoch. Each rank keeps its last
 *              LT_COMM_RECORDS calls and writes them to record_dir when one fails; lt_comm_blame
 *              compares the files of all ranks. */
#ifndef LATEEN_COMM_H
#define LATEEN_COMM_H

#include "lateen/tensor.h"

#define LT_COMM_RECORDS   2048
#define LT_COMM_MAX_RANKS 4096
#define LT_COMM_NAME      24  /* Bytes of a group's name, its end included. */
#define LT_COMM_AHEAD     256 /* Calls of a rank that may be under way; the next waits for room. */

typedef struct lt_comm lt_comm;
typedef struct lt_group lt_group;
/* A call under way: its number among the calls of its rank, from 1. */
typedef uint64_t lt_comm_work;

typedef enum { LT_REDUCE_SUM, LT_REDUCE_MAX, LT_REDUCE_MIN } lt_reduce;

typedef struct {
    double deadline_s;      /* Of each verb, from its start on this rank; 0: 30 s. */
    const char *record_dir; /* Where records of calls are written after a failure; NULL: nowhere. */
    uint64_t epoch;         /* Of this world; in every record. */
    /* Between processes: members tell each other what they call before any data move, and a
     * difference is named. Threads always do. */
    bool check;
} lt_comm_options;

/* Run fn once for each rank, each in a thread of its own, and wait for all. The first failure is
 * returned, with the message "rank R: ..."; the others are aborted. */
LT_MUST_USE lt_err lt_comm_run_threads(int n_ranks, const lt_comm_options *o,
                                       lt_err (*fn)(lt_comm *c, void *ctx), void *ctx);

/* The world that this process was started in: by mpirun or srun, a rank of theirs (Open MPI, opened
 * at run time; UNSUPPORTED where it is not installed, or is another); else a world of this rank
 * alone. Once a process. close accepts NULL; it is a collective call unless the world has failed.
 */
LT_MUST_USE lt_err lt_comm_open(lt_comm **out, const lt_comm_options *o);
LT_MUST_USE lt_err lt_comm_open_self(lt_comm **out, const lt_comm_options *o);
LT_MUST_USE lt_err lt_comm_open_mpi(lt_comm **out, const lt_comm_options *o);
bool lt_comm_under_mpi(void); /* Did mpirun, or srun with PMIx, start this process? */
void lt_comm_close(lt_comm *c);

int lt_comm_rank(const lt_comm *c);
int lt_comm_size(const lt_comm *c);
const char *lt_comm_transport(const lt_comm *c); /* "self", "thread", "mpi" */

/* A group of ranks of the world, each once, this one among them; every member gives the same name
 * and list. Groups live as long as their world. ARG for a bad list. */
LT_MUST_USE lt_err lt_group_open(lt_group **out, lt_comm *c, const char *name, const int *ranks,
                                 int n);
int lt_group_rank(const lt_group *g); /* This rank's number in the group. */
int lt_group_size(const lt_group *g);
const char *lt_group_name(const lt_group *g);
lt_comm *lt_group_comm(const lt_group *g);

/* dst = reduction over all members' src, (count) each. dst may be src. */
LT_MUST_USE lt_err lt_all_reduce(lt_group *g, void *dst, const void *src, int64_t count,
                                 lt_dtype dtype, lt_reduce op, lt_comm_work *work);
/* Of the reduction of all src (n, count), member i gets row i in dst (count). dst may be row i of
 * its own src. */
LT_MUST_USE lt_err lt_reduce_scatter(lt_group *g, void *dst, const void *src, int64_t count,
                                     lt_dtype dtype, lt_reduce op, lt_comm_work *work);
/* dst (n, count): row i is member i's src (count). src may be the own row of dst. */
LT_MUST_USE lt_err lt_all_gather(lt_group *g, void *dst, const void *src, int64_t count,
                                 lt_dtype dtype, lt_comm_work *work);
/* data (count) of member root, to all. */
LT_MUST_USE lt_err lt_broadcast(lt_group *g, void *data, int64_t count, lt_dtype dtype, int root,
                                lt_comm_work *work);
/* Member j gets send_counts[j] elements of src, which lie one behind the other in the order of the
 * members; dst receives recv_counts[i] from member i likewise. What i sends to j is what j receives
 * from i, or both fail. src and dst must not overlap; the counts are read before the call
 * returns. */
LT_MUST_USE lt_err lt_all_to_all(lt_group *g, void *dst, const int64_t *recv_counts,
                                 const void *src, const int64_t *send_counts, lt_dtype dtype,
                                 lt_comm_work *work);
LT_MUST_USE lt_err lt_send(lt_group *g, int to, const void *src, int64_t count, lt_dtype dtype,
                           lt_comm_work *work);
LT_MUST_USE lt_err lt_recv(lt_group *g, int from, void *dst, int64_t count, lt_dtype dtype,
                           lt_comm_work *work);
LT_MUST_USE lt_err lt_barrier(lt_group *g);

/* Until this call of the rank is done; its failure. A call may be waited for once, several times or
 * never. */
LT_MUST_USE lt_err lt_comm_wait(lt_comm *c, lt_comm_work work);
bool lt_comm_done(lt_comm *c, lt_comm_work work); /* Done or failed; never waits. */

/* End this world from any thread: every verb under way on any rank fails with REMOTE and the reason
 * at once, later ones too. The first reason stands. */
void lt_comm_abort(lt_comm *c, const char *reason);

/* Why a world ended, from the records of its ranks in a folder: which ranks left none, which did
 * not come to a call that others had begun, which called something else. Lines of text into out,
 * cut off at its end. */
LT_MUST_USE lt_err lt_comm_blame(const char *dir, char *out, size_t out_bytes);

/* ---- The mesh ----------------------------------------------------------------------------------
 * Ranks as points of a box with named axes, outermost first: pp, dp, cp, tp; the last varies
 * fastest from rank to rank, so ranks of a tensor-parallel group are neighbours. ep divides dp x
 * cp: experts are spread over ep neighbours of that plane. Each axis is the group of the ranks that
 * differ from this one in it alone. */
#define LT_MESH_AXES(X) X(pp) X(dp) X(cp) X(tp)
typedef struct {
#define LT_MESH_FIELD(axis) lt_group *axis;
    LT_MESH_AXES(LT_MESH_FIELD)
#undef LT_MESH_FIELD
    lt_group *world; /* All ranks. */
    lt_group *grad;  /* dp x cp: the ranks that hold the same weights; ZeRO divides them over it. */
    lt_group *ep;    /* Neighbours in grad that share one set of experts. */
    lt_group *edp;   /* The ranks of grad that hold the same experts. */
} lt_mesh;

typedef struct {
    int pp, dp, cp, tp, ep; /* Each at least 1. */
} lt_mesh_shape;

/* "dp=2,tp=4": axes in any order, each once, those that are not named are 1; "" is all 1. ARG names
 * what is wrong. */
LT_MUST_USE lt_err lt_mesh_parse(lt_mesh_shape *out, const char *text);
/* ARG unless the product of the axes is n_ranks and ep divides dp * cp. The message names both
 * numbers and the nearest data-parallel size that fits. */
LT_MUST_USE lt_err lt_mesh_check(const lt_mesh_shape *s, int n_ranks);
LT_MUST_USE lt_err lt_mesh_open(lt_mesh *out, lt_comm *c, const lt_mesh_shape *s);

#endif
