/* verb_submit.c: `lateen submit RECIPE --tenant X --gpus 8..32`: submits a training run as a Slurm
 * job that saves when it is preempted, and resumes with as many GPUs as it gets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/train/train_recipe.h"
#include "cli/verb.h"
#include "lateen/comm.h"
#include "platform/cluster/job.h"
#include "platform/command.h"

#define MOST_WORDS 256
#define SUBMIT_S   60.0

#define SUBMIT_OPTIONS(X)                                                                          \
    X(STR, tenant, "tenant", "", 0, 1, "NAME",                                                     \
      "Slurm's account, as `lateen cluster policy` names it")                                      \
    X(STR, gpus, "gpus", "", 0, 1, "N|MIN..MAX",                                                   \
      "GPUs of the job; with two numbers it begins with what is free between them")                \
    X(I64, node_gpus, "node-gpus", "8", 1, 1024, "N", "GPUs of a node, each with a rank")          \
    X(STR, time, "time", "", 0, 0, "TIME",                                                         \
      "time limit of one start, as sbatch reads it; then the job queues again; empty: the "        \
      "partition's")                                                                               \
    X(STR, partition, "partition", "", 0, 0, "NAME,...",                                           \
      "partition of Slurm; empty: the default one")                                                \
    X(BOOL, borrow, "borrow", "false", 0, 0, "",                                                   \
      "run on GPUs that other tenants do not use, beyond the quota, and be preempted when they "   \
      "do: QOS TENANT-borrow")                                                                     \
    X(STR, qos, "qos", "", 0, 0, "NAME", "another QOS; empty: the account's default")              \
    X(STR, reservation, "reservation", "", 0, 0, "NAME",                                           \
      "reservation to run in: a guarantee of limited duration")                                    \
    X(STR, name, "name", "", 0, 0, "TEXT", "name of the job; empty: the recipe's")                 \
    X(I64, spares, "spares", "0", 0, 1024, "NODES", "further nodes, in place of those that fail")  \
    X(I64, cpus, "cpus", "8", 1, 1024, "N", "cores of each rank")                                  \
    X(I64, lead, "lead", "120", 60, 86400, "S",                                                    \
      "how long before the time limit the ranks are asked to save")                                \
    X(F64, grow, "grow-min", "30", 0, 1e5, "MIN",                                                  \
      "how often a job that has fewer GPUs than its maximum looks for idle nodes; 0: never")       \
    X(I64, retries, "retries", "9", 0, 1e6, "",                                                    \
      "--retries of `lateen launch`, for jobs of one node")                                        \
    X(STR, mpi, "mpi", "pmix", 0, 1, "NAME",                                                       \
      "srun's --mpi: how ranks of several nodes are connected")                                    \
    X(STR, container, "container", "", 0, 0, "IMAGE",                                              \
      "run in this container, in which `lateen` is on the PATH; empty: none")                      \
    X(ENUM, by, "container-by", "pyxis", 0, 0, LT_JOB_CONTAINERS,                                  \
      "what starts the container: srun --container-image, srun --environment, or apptainer exec")  \
    X(STR, program, "program", "", 0, 0, "PATH",                                                   \
      "lateen on the nodes; empty: this program; in a container `lateen`")                         \
    X(STR, log, "log", "", 0, 0, "FILE", "output of the job; empty: slurm-%j.out")                 \
    X(BOOL, check, "check", "true", 0, 0, "", "check the nodes first: lateen health --tier 2")     \
    X(BOOL, ask_gpus, "ask-gpus", "true", 0, 0, "",                                                \
      "ask Slurm for GPUs; without it, --gpus counts ranks that compute on CPUs")                  \
    X(BOOL, dry, "dry-run", "false", 0, 0, "", "print the batch script, and submit nothing")

typedef struct {
    SUBMIT_OPTIONS(LT_OPTION_FIELD)
} submit_options;
#define LT_OPTION_STRUCT submit_options
static const lt_option rows[] = {SUBMIT_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_submit_options = LT_OPTION_TABLE("submit", rows);

static const char usage[] =
    "submit RECIPE.yaml --tenant NAME --gpus N|MIN..MAX [options] [-- --KEY VALUE ...]";
static const char prose[] =
    "Submit a training run to Slurm. The recipe and the options after -- are those of `lateen "
    "train`,\n"
    "and are checked first. The job checks its nodes, trains, saves before its time limit and\n"
    "when it is preempted, and queues again until the last step. With MIN..MAX it begins with the\n"
    "nodes that are free: dp follows from their number, and a step keeps its rows. Numbers of "
    "GPUs\n"
    "with which the recipe cannot train are refused. squeue and scancel show and cancel it.";

/* ---- Sizes ---- */

typedef struct {
    lt_mesh_shape mesh; /* The recipe's mesh, whose dp changes. */
    char axes[64];      /* Axes without dp. */
    int64_t rest, least, most, node;
    int64_t *sizes; /* In nodes, largest first. */
    size_t n_sizes;
} elastic;

/* "16" or "8..32". */
static lt_err read_gpus(elastic *e, const char *text) {
    char *end;
    e->least = e->most = strtoll(text, &end, 10);
    if (end != text && strncmp(end, "..", 2) == 0) {
        const char *second = end + 2;
        e->most = strtoll(second, &end, 10);
        end = end == second ? (char *)(uintptr_t)text : end;
    }
    if (end == text || *end != '\0' || e->least < 1 || e->most < e->least ||
        e->most > LT_COMM_MAX_RANKS) {
        LT_FAIL(LT_ERR_ARG, "--gpus '%s' is neither N nor MIN..MAX, with numbers from 1 to %d",
                text, LT_COMM_MAX_RANKS);
    }
    return LT_OK;
}

/* GPUs are allocated as whole nodes, or as a part of one. */
static lt_err place(elastic *e, const char *asked, int64_t node_gpus) {
    e->node = e->most < node_gpus && e->least == e->most ? e->most : node_gpus;
    if (e->least % e->node != 0 || e->most % e->node != 0) {
        LT_FAIL(LT_ERR_ARG,
                "--gpus %s: nodes have %lld GPUs (--node-gpus), and a job takes whole nodes, or a "
                "part of one",
                asked, (long long)e->node);
    }
    return LT_OK;
}

static void write_axes(elastic *e) {
    const struct {
        const char *name;
        int n;
    } axes[] = {{"pp", e->mesh.pp}, {"cp", e->mesh.cp}, {"tp", e->mesh.tp}, {"ep", e->mesh.ep}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (axes[i].n > 1) {
            used += (size_t)snprintf(e->axes + used, sizeof e->axes - used, "%s%s=%d",
                                     used > 0 ? "," : "", axes[i].name, axes[i].n);
        }
    }
}

/* Whether the recipe can train on this many GPUs. */
static lt_err check_size(const elastic *e, const lt_recipe *r, int64_t gpus) {
    lt_mesh_shape s = e->mesh;
    lt_err err;
    s.dp = (int)(gpus / e->rest);
    err = gpus % e->rest != 0 ? lt_error_set(LT_ERR_ARG, "a replica of mesh %s takes %lld GPUs",
                                             e->axes, (long long)e->rest)
                              : lt_mesh_check(&s, (int)gpus);
    err = err == LT_OK ? lt_recipe_divides(r, &s) : err;
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "with %lld GPUs", (long long)gpus);
}

static lt_err find_sizes(elastic *e, const lt_recipe *r) {
    const size_t n = (size_t)((e->most - e->least) / e->node) + 1;
    e->sizes = calloc(n, sizeof *e->sizes);
    if (e->sizes == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu sizes of a job", n);
    }
    LT_TRY(check_size(e, r, e->least));
    LT_TRY(check_size(e, r, e->most));
    for (int64_t gpus = e->most; gpus >= e->least; gpus -= e->node) {
        if (check_size(e, r, gpus) == LT_OK) {
            e->sizes[e->n_sizes++] = gpus / e->node;
        } else {
            lt_log_warn("%s; if it is granted this many, the job uses fewer", lt_error_message());
        }
    }
    return LT_OK;
}

static lt_err make_elastic(elastic *e, const lt_recipe *r, const submit_options *o) {
    if (r->sites > 1 || r->layout == LT_LAYOUT_AUTO) {
        LT_FAIL(LT_ERR_ARG,
                "submit needs a mesh of one site, of which dp may change: %s is not supported",
                r->sites > 1 ? "diloco.sites" : "layout: auto");
    }
    LT_TRY(lt_mesh_parse(&e->mesh, r->mesh));
    e->rest = (int64_t)e->mesh.pp * e->mesh.cp * e->mesh.tp;
    write_axes(e);
    LT_TRY(read_gpus(e, o->gpus));
    LT_TRY(place(e, o->gpus, o->node_gpus));
    return find_sizes(e, r);
}

/* ---- The job ---- */

static lt_err fill_job(lt_job *j, const submit_options *o, char qos[LT_OPTION_STR_BYTES],
                       char own[LT_PATH_BYTES]) {
    const ssize_t n = readlink("/proc/self/exe", own, LT_PATH_BYTES - 1);
    if (n <= 0) {
        LT_FAIL(LT_ERR_IO, "the path of this program cannot be read");
    }
    own[n] = '\0';
    if (o->borrow && o->qos[0] != '\0') {
        LT_FAIL(LT_ERR_ARG, "--borrow means the QOS %s-borrow, and --qos asks for %s", o->tenant,
                o->qos);
    }
    if (o->borrow && o->reservation[0] != '\0') {
        LT_FAIL(LT_ERR_ARG,
                "--borrow uses GPUs that others leave idle, so it cannot use reservation %s",
                o->reservation);
    }
    (void)snprintf(qos, LT_OPTION_STR_BYTES, "%.*s%s", LT_OPTION_STR_BYTES - 16,
                   o->borrow ? o->tenant : o->qos, o->borrow ? "-borrow" : "");
    j->account = o->tenant;
    j->qos = qos;
    j->partition = o->partition;
    j->time = o->time;
    j->reservation = o->reservation;
    j->log = o->log;
    j->container = o->container;
    j->by = (lt_job_container)o->by;
    j->program = o->program[0] != '\0' ? o->program : o->container[0] != '\0' ? "lateen" : own;
    j->spares = o->spares;
    j->cpus = o->cpus;
    j->lead_s = o->lead;
    j->grow_s = (int64_t)(o->grow * 60.0);
    j->retries = o->retries;
    j->mpi = o->mpi;
    j->asks_gpus = o->ask_gpus;
    j->checks = o->check;
    return LT_OK;
}

/* The script is kept in the run folder. */
static lt_err submit(const char *script, const char *out) {
    char path[LT_PATH_BYTES], *said = NULL;
    LT_TRY(lt_file_make_dirs(out));
    LT_TRY(lt_path_join(path, out, "job.sbatch"));
    LT_TRY(lt_file_write_atomic(path, script, strlen(script)));
    LT_TRY(lt_command_run(&said, (const char *const[]){"sbatch", path, NULL}, SUBMIT_S));
    fputs(said, stdout);
    free(said);
    return LT_OK;
}

/* The port of HOST:PORT; 0 if there is none, or any that is free. */
static int64_t port_of(const char *address) {
    const char *colon = strrchr(address, ':');
    return strtol(colon != NULL ? colon + 1 : address, NULL, 10);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static lt_err run(const submit_options *o, lt_recipe *r, const char **words, int n) {
    char *argv[MOST_WORDS + 2] = {(char *)(uintptr_t) "train"}, name[LT_OPTION_STR_BYTES];
    char qos[LT_OPTION_STR_BYTES], own[LT_PATH_BYTES], *script = NULL;
    elastic e = {0};
    lt_job j = {.words = words};
    bool help = false;
    lt_err err = LT_OK;

    memcpy(argv + 1, words, (size_t)n * sizeof *words);
    LT_TRY(lt_cli_recipe_load(r, n + 1, argv, &help));
    if (help) {
        LT_FAIL(LT_ERR_ARG, "options after -- are for training; `lateen train --help` has them");
    }
    LT_TRY(lt_recipe_check(r));
    LT_TRY_DONE(make_elastic(&e, r, o));
    LT_TRY_DONE(fill_job(&j, o, qos, own));
    (void)snprintf(name, sizeof name, "%s", o->name[0] != '\0' ? o->name : base_name(words[0]));
    if (o->name[0] == '\0' && lt_path_has_suffix(name, ".yaml")) {
        name[strlen(name) - strlen(".yaml")] = '\0';
    }
    j.name = name;
    j.out = r->out;
    j.metrics_port = port_of(r->metrics_listen);
    j.axes = e.axes;
    j.rest = e.rest;
    j.sizes = e.sizes;
    j.n_sizes = e.n_sizes;
    j.node_gpus = e.node;
    LT_TRY_DONE(lt_job_script(&script, &j));
    if (o->dry) {
        fputs(script, stdout);
    } else {
        LT_TRY_DONE(submit(script, r->out));
    }
done:
    free(script);
    free(e.sizes);
    return err;
}

int lt_verb_submit(int argc, char **argv);
int lt_verb_submit(int argc, char **argv) {
    submit_options o;
    const char *words[MOST_WORDS + 1] = {NULL};
    int n = 0, status = LT_EXIT_DONE;
    lt_recipe *r;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_submit_options, &o, argc, argv, usage, prose, words, MOST_WORDS, &n,
                       &status)) {
        return status;
    }
    if (n == 0 || o.tenant[0] == '\0' || o.gpus[0] == '\0') {
        (void)fprintf(stderr,
                      "lateen: submit needs a recipe, --tenant and --gpus\nusage: lateen %s\n",
                      usage);
        return LT_EXIT_USAGE;
    }
    r = calloc(1, sizeof *r);
    err = r != NULL ? run(&o, r, words, n) : lt_error_set(LT_ERR_OOM, "recipe");
    free(r);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
