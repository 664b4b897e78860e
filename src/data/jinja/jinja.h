/* jinja.h: the parts of the template interpreter (only chat_template.c, which opens and renders,
 * includes this).
 *
 *     text ─lex.c─▶ tokens ─parse.c, parse_expr.c─▶ tree ─eval.c─▶ text
 *                                                           │
 *         value.c, ops.c (Python's values and operators), text.c (their text),
 *         filters.c, filters_list.c, methods.c, builtin.c (tests, functions, "%s")
 *
 * MEMORY   a tree lives in its template's pool, the values of a rendering in its own pool. A pool
 *          only grows and is freed as a whole, so values need no reference counts. It has a budget:
 *          a template that exceeds it fails with LIMIT.
 * BOUNDS   each evaluated node, each visited item and each 64 bytes of text count as a step. Steps,
 *          nesting (in the tree and at run time) and memory are limited.
 * SANDBOX  values are copies of the caller's JSON. No value gives access to a file, a process or a
 *          clock (except strftime_now), and lists and dicts cannot be changed, as in transformers'
 *          ImmutableSandboxedEnvironment.
 * The parser and the evaluator are recursive; their depth is bounded by LT_JINJA_PARSE_DEPTH and
 * LT_JINJA_EVAL_DEPTH. */
#ifndef LT_DATA_JINJA_H
#define LT_DATA_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"

#define LT_JINJA_POOL_BYTES  ((size_t)256 << 20) /* Most memory of one render. */
#define LT_JINJA_STEPS       50000000            /* Most steps of one render: a few seconds. */
#define LT_JINJA_PARSE_DEPTH 120
#define LT_JINJA_EVAL_DEPTH  600
#define LT_JINJA_RANGE       100000 /* Items of range() at most, as in Jinja's sandbox. */

/* ---- pool ---- */

typedef struct lt_jchunk lt_jchunk;

typedef struct {
    lt_jchunk *last;
    size_t used_bytes, limit_bytes;
} lt_jpool;

/* Memory aligned to 8 bytes, zeroed. */
LT_MUST_USE lt_err lt_jpool_take(lt_jpool *p, size_t bytes, void **out);
LT_MUST_USE lt_err lt_jpool_grow(lt_jpool *p, void **data, size_t old_bytes, size_t new_bytes);
void lt_jpool_free(lt_jpool *p);

/* A string being built in a pool. */
typedef struct {
    lt_jpool *pool;
    char *s;
    size_t n, room;
} lt_jbuf;

LT_MUST_USE lt_err lt_jbuf_put(lt_jbuf *b, const char *s, size_t n);
LT_MUST_USE lt_err lt_jbuf_puts(lt_jbuf *b, const char *s);

/* ---- values ---- */

typedef enum {
    LT_JV_ABSENT, /* An argument that was not given; templates never see it. */
    LT_JV_UNDEF,  /* s, n: its name, for messages. */
    LT_JV_NONE,
    LT_JV_BOOL,
    LT_JV_INT,
    LT_JV_FLOAT,
    LT_JV_LONG, /* s, n: the digits of an integer beyond 64 bits; arithmetic makes it a FLOAT. */
    LT_JV_STR,
    LT_JV_LIST, /* Lists, tuples, ranges, generators, views: see list->sub. */
    LT_JV_DICT,
    LT_JV_NAMESPACE,
    LT_JV_MACRO,
    LT_JV_METHOD, /* A value with the name of one of its methods. */
    LT_JV_GLOBAL, /* A function of the environment (range, namespace, raise_exception, ...). */
    LT_JV_LOOP,
    LT_JV_CYCLER,
    LT_JV_JOINER
} lt_jkind;

typedef enum {
    LT_JLIST_LIST,
    LT_JLIST_TUPLE,
    LT_JLIST_RANGE,
    LT_JLIST_ITER, /* map, select, reverse, ...: can be iterated once; has no length. */
    LT_JLIST_VIEW  /* dict.items(), keys(), values(): has a length, but no subscripts. */
} lt_jlist_sub;

typedef struct lt_jlist lt_jlist;
typedef struct lt_jdict lt_jdict;
typedef struct lt_jmacro lt_jmacro;
typedef struct lt_jmethod lt_jmethod;
typedef struct lt_jloop lt_jloop;
typedef struct lt_jcycler lt_jcycler;
typedef struct lt_jscope lt_jscope;
typedef struct lt_jnode lt_jnode;
typedef struct lt_jrun lt_jrun;

typedef struct {
    lt_jkind kind : 8;
    bool markup : 1; /* STR: the result of safe or escape; text that is added to it is escaped. */
    uint32_t n;      /* STR, UNDEF, LONG: bytes. */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* Not 0-terminated. */
        lt_jlist *list;
        lt_jdict *dict; /* DICT, NAMESPACE */
        lt_jmacro *macro;
        lt_jmethod *method;
        lt_jloop *loop;
        lt_jcycler *cycler; /* CYCLER, JOINER */
        int64_t global;     /* Index in the table of globals, in builtin.c. */
    };
} lt_jv;

struct lt_jlist {
    lt_jv *v;
    size_t n, room;
    lt_jlist_sub sub;
    bool spent;                /* ITER: has been iterated. */
    bool group;                /* TUPLE: of groupby; its items are also .grouper and .list. */
    const char *what;          /* ITER, VIEW: "generator", "dict_items", ... for its text. */
    int64_t start, stop, step; /* RANGE, for its text. */
};

typedef struct {
    lt_jv key, value;
} lt_jpair;

struct lt_jdict {
    lt_jpair *v; /* In order of insertion. */
    size_t n, room;
};

struct lt_jmethod {
    lt_jv self;
    const char *name;
    size_t n;
};

struct lt_jloop {
    const lt_jlist *items;
    size_t index;
    int depth;
    lt_jv changed; /* Arguments of the last loop.changed(), a tuple; ABSENT before. */
};

struct lt_jcycler {
    lt_jlist *items;
    size_t pos; /* JOINER: 0 before its first use. */
};

/* A string's pointer is never NULL, even if the string is empty. */
static inline const char *lt_jv_some(const char *p) {
    return p != NULL ? p : "";
}

#define LT_JV(k)             ((lt_jv){.kind = LT_JV_##k})
#define LT_JV_OF_BOOL(x)     ((lt_jv){.kind = LT_JV_BOOL, .b = (x)})
#define LT_JV_OF_INT(x)      ((lt_jv){.kind = LT_JV_INT, .i = (x)})
#define LT_JV_OF_STR(p, len) ((lt_jv){.kind = LT_JV_STR, .s = lt_jv_some(p), .n = (uint32_t)(len)})

bool lt_jv_is_int(lt_jv v);    /* int or bool */
bool lt_jv_is_number(lt_jv v); /* int, bool or float */
double lt_jv_number(lt_jv v);
bool lt_jv_is_iterable(lt_jv v);
bool lt_jv_str_is(lt_jv v, const char *text);
bool lt_jv_truth(lt_jv v);
bool lt_jv_unhashable(lt_jv v); /* The value cannot be a key of a dict. */
bool lt_jv_equal(lt_jv a, lt_jv b);
const char *lt_jv_type(lt_jv v); /* "str", "int", ... for messages. */

LT_MUST_USE lt_err lt_jv_copy_str(lt_jpool *p, const char *s, size_t n, lt_jv *out);
LT_MUST_USE lt_err lt_jv_new_list(lt_jpool *p, lt_jlist_sub sub, size_t room, lt_jv *out);
LT_MUST_USE lt_err lt_jv_push(lt_jpool *p, lt_jlist *l, lt_jv v);
LT_MUST_USE lt_err lt_jv_new_pair(lt_jpool *p, lt_jv a, lt_jv b, lt_jv *out); /* A tuple. */
LT_MUST_USE lt_err lt_jv_new_dict(lt_jpool *p, lt_jv *out);
LT_MUST_USE lt_err lt_jv_set(lt_jpool *p, lt_jdict *d, lt_jv key, lt_jv value);
const lt_jv *lt_jv_get(const lt_jdict *d, lt_jv key); /* NULL: no such key. */
const lt_jv *lt_jv_get_str(const lt_jdict *d, const char *key);
LT_MUST_USE lt_err lt_jv_from_json(lt_jpool *p, const json_t *j, lt_jv *out);

/* ---- characters: strings are UTF-8 and indexed by code point, as in Python ---- */

bool lt_jtext_space(uint32_t cp); /* str.isspace */
size_t lt_jtext_count(const char *s, size_t n);
/* Byte offset of a code point; n if index is past the end. */
size_t lt_jtext_offset(const char *s, size_t n, size_t index);
void lt_jtext_strip(const char **s, size_t *n, bool left, bool right);
typedef enum {
    LT_CASE_LOWER,
    LT_CASE_UPPER,
    LT_CASE_TITLE,
    LT_CASE_CAPITALIZE,
    LT_CASE_SWAP,
    LT_CASE_FOLD
} lt_jcase;
LT_MUST_USE lt_err lt_jtext_case(lt_jbuf *b, const char *s, size_t n, lt_jcase how);

/* ---- text of values ---- */

LT_MUST_USE lt_err lt_jtext_float(lt_jbuf *b, double x);           /* repr(float) */
LT_MUST_USE lt_err lt_jtext_str(lt_jrun *r, lt_jbuf *b, lt_jv v);  /* str(v) */
LT_MUST_USE lt_err lt_jtext_repr(lt_jrun *r, lt_jbuf *b, lt_jv v); /* repr(v) */
/* str(v) as a value; a string is returned unchanged. */
LT_MUST_USE lt_err lt_jtext_of(lt_jrun *r, lt_jv v, lt_jv *out);
typedef struct {
    bool ascii, sort;
    lt_jv indent;            /* NONE, INT or STR */
    lt_jv item_sep, key_sep; /* STR */
} lt_jtext_json_options;
LT_MUST_USE lt_err lt_jtext_json(lt_jrun *r, lt_jbuf *b, lt_jv v, const lt_jtext_json_options *o);

/* ---- tree ---- */

typedef enum {
    LT_TOK_DATA,
    LT_TOK_VAR_BEGIN,
    LT_TOK_VAR_END,
    LT_TOK_BLOCK_BEGIN,
    LT_TOK_BLOCK_END,
    LT_TOK_NAME,
    LT_TOK_STRING,
    LT_TOK_INT,
    LT_TOK_FLOAT,
    LT_TOK_OP,
    LT_TOK_END
} lt_jtok_kind;

typedef struct {
    lt_jtok_kind kind;
    int line;
    const char *s; /* DATA, NAME, OP: in the source; STRING: unescaped. */
    size_t n;
} lt_jtok;

/* name: for messages. The tokens are in the pool; the last is LT_TOK_END. */
LT_MUST_USE lt_err lt_jinja_lex(lt_jpool *pool, const char *text, size_t bytes, const char *name,
                                lt_jtok **out, size_t *n);

#define LT_JINJA_NODES(X)                                                                          \
    /* Statements. */                                                                              \
    X(DATA)         /* value */                                                                    \
    X(PRINT)        /* a */                                                                        \
    X(IF)           /* a: test, b: body, c: else */                                                \
    X(FOR)          /* a: target, b: iterable, c: body, d: else, e: filter; flag: recursive */     \
    X(SET)          /* a: target, b: value */                                                      \
    X(SET_BLOCK)    /* a: target, b: body, c: filters */                                           \
    X(MACRO)        /* value: name, a: parameters (PARAM), b: body */                              \
    X(CALL_BLOCK)   /* a: call, b: the caller (MACRO) */                                           \
    X(FILTER_BLOCK) /* a: filters, b: body */                                                      \
    X(WITH)         /* a: targets, b: values, c: body */                                           \
    X(SCOPE)        /* a: body; generation */                                                      \
    X(BREAK)                                                                                       \
    X(CONTINUE)                                                                                    \
    /* Expressions. */                                                                             \
    X(CONST) /* value */                                                                           \
    X(NAME)  /* value */                                                                           \
    X(NSREF) /* value: attribute, a: NAME; only a target */                                        \
    X(TUPLE) /* a: items */                                                                        \
    X(LIST)                                                                                        \
    X(DICT) /* a: key, value, key, value, ... */                                                   \
    X(COND) /* a: test, b: then, c: else or NULL */                                                \
    X(AND)                                                                                         \
    X(OR)                                                                                          \
    X(NOT)                                                                                         \
    X(NEG)                                                                                         \
    X(POS)                                                                                         \
    X(BINARY)  /* op: LT_OP_*, a, b */                                                             \
    X(CONCAT)  /* a: items */                                                                      \
    X(COMPARE) /* a: first, b: OPERANDs */                                                         \
    X(OPERAND) /* op, a */                                                                         \
    X(ATTR)    /* a, value: name */                                                                \
    X(ITEM)    /* a, b */                                                                          \
    X(SLICE)   /* a: start, b: stop, c: step, each or NULL */                                      \
    X(CALL)    /* a: callee, b: ARGs */                                                            \
    X(FILTER)  /* value: name, a: input or NULL, b: ARGs */                                        \
    X(TEST)    /* value: name, a: input, b: ARGs */                                                \
    X(ARG)     /* a; op: LT_ARG_*; value: keyword */                                               \
    X(PARAM)   /* value: name, a: default or NULL */

typedef enum {
#define LT_JINJA_NODE_ENUM(name) LT_NODE_##name,
    LT_JINJA_NODES(LT_JINJA_NODE_ENUM)
#undef LT_JINJA_NODE_ENUM
} lt_jnode_kind;

typedef enum {
    LT_OP_ADD,
    LT_OP_SUB,
    LT_OP_MUL,
    LT_OP_DIV,
    LT_OP_FLOORDIV,
    LT_OP_MOD,
    LT_OP_POW,
    LT_OP_EQ,
    LT_OP_NE,
    LT_OP_LT,
    LT_OP_LE,
    LT_OP_GT,
    LT_OP_GE,
    LT_OP_IN,
    LT_OP_NOT_IN
} lt_jop;

enum { LT_ARG_POS, LT_ARG_KEYWORD, LT_ARG_STAR, LT_ARG_STARSTAR };

struct lt_jnode {
    lt_jnode_kind kind;
    int op, line;
    bool flag;
    lt_jv value;
    lt_jnode *a, *b, *c, *d, *e;
    lt_jnode *next; /* The next node of a list. */
};

LT_MUST_USE lt_err lt_jinja_parse(lt_jpool *pool, const lt_jtok *tokens, size_t n, const char *name,
                                  lt_jnode **out);

/* ---- run ---- */

typedef struct {
    lt_jv name, value;
} lt_jvar;

struct lt_jscope {
    lt_jscope *parent;
    lt_jvar *v;
    size_t n, room;
};

struct lt_jmacro {
    const lt_jnode *node; /* MACRO */
    lt_jscope *scope;     /* Where it was defined. */
};

typedef struct {
    lt_jv *pos;
    size_t n_pos;
    lt_jpair *kw;
    size_t n_kw;
} lt_jargs;

struct lt_jrun {
    const char *name;
    lt_jpool pool;
    int64_t steps;
    int depth, line, loops;
    lt_jscope *globals;
    int64_t now_s;      /* strftime_now; negative: the present. */
    lt_jbuf *out, *top; /* Current output; output of the template itself (a macro's is captured). */
    /* Pairs of positions in *top: {% generation %} and its end; NULL: they are not recorded. */
    lt_jlist *generated;
    lt_jv block_text; /* Input of a filter block. */
};

/* Fail with ARG and "NAME:LINE: " before the message. */
#define LT_JFAIL(r, ...) return (lt_jinja_fail((r), __VA_ARGS__), LT_ERR_ARG)
void lt_jinja_fail(const lt_jrun *r, const char *fmt, ...) LT_PRINTF(2, 3);

LT_MUST_USE lt_err lt_jinja_steps(lt_jrun *r, size_t n);
LT_MUST_USE lt_err lt_jinja_enter(lt_jrun *r); /* Enter one level deeper; leave it by r->depth--. */

lt_jv lt_jscope_find(const lt_jscope *s, lt_jv name); /* UNDEF if there is none. */
LT_MUST_USE lt_err lt_jscope_set(lt_jrun *r, lt_jscope *s, lt_jv name, lt_jv value);
LT_MUST_USE lt_err lt_jscope_open(lt_jrun *r, lt_jscope *parent, lt_jscope **out);

typedef enum { LT_FLOW_NEXT, LT_FLOW_BREAK, LT_FLOW_CONTINUE } lt_jflow;

LT_MUST_USE lt_err lt_jinja_exec(lt_jrun *r, lt_jscope *s, const lt_jnode *body, lt_jflow *flow);
LT_MUST_USE lt_err lt_jinja_eval(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out);
LT_MUST_USE lt_err lt_jinja_eval_args(lt_jrun *r, lt_jscope *s, const lt_jnode *args,
                                      lt_jargs *out);
LT_MUST_USE lt_err lt_jinja_call(lt_jrun *r, lt_jv callee, const lt_jargs *args, lt_jv *out);
LT_MUST_USE lt_err lt_jinja_call_macro(lt_jrun *r, const lt_jmacro *m, const lt_jargs *args,
                                       lt_jv *out);

/* Python's operators. */
LT_MUST_USE lt_err lt_jinja_binary(lt_jrun *r, lt_jop op, lt_jv a, lt_jv b, lt_jv *out);
LT_MUST_USE lt_err lt_jinja_compare(lt_jrun *r, lt_jop op, lt_jv a, lt_jv b, bool *out);
LT_MUST_USE lt_err lt_jinja_less(lt_jrun *r, lt_jv a, lt_jv b, bool *out);
/* Set *out to the items of a for loop over v. */
LT_MUST_USE lt_err lt_jinja_iterate(lt_jrun *r, lt_jv v, lt_jlist **out);
LT_MUST_USE lt_err lt_jinja_attr(lt_jrun *r, lt_jv v, lt_jv name, lt_jv *out);
LT_MUST_USE lt_err lt_jinja_item(lt_jrun *r, lt_jv v, lt_jv index, lt_jv *out);
LT_MUST_USE lt_err lt_jinja_slice(lt_jrun *r, lt_jv v, const lt_jv part[3], lt_jv *out);
LT_MUST_USE lt_err lt_jinja_sort(lt_jrun *r, lt_jlist *items, const lt_jv *keys, bool reverse);
/* Escape for HTML, as MarkupSafe does. */
LT_MUST_USE lt_err lt_jinja_escape(lt_jrun *r, lt_jv v, lt_jv *out);
/* "..." % x */
LT_MUST_USE lt_err lt_jinja_percent(lt_jrun *r, lt_jv format, lt_jv args, lt_jv *out);

/* Builtins: bound arguments are in a[0..n_params), ABSENT if not given. */
#define LT_JINJA_PARAMS 6
typedef struct {
    const char *name;
    /* self: the filtered value, or the object of a method. args: all arguments, for builtins whose
     * params is NULL. */
    lt_err (*call)(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out);
    const char *params; /* "name name ..."; NULL: any. */
    size_t required;    /* How many arguments must be given. */
} lt_jbuiltin;

LT_MUST_USE lt_err lt_jinja_call_builtin(lt_jrun *r, const lt_jbuiltin *f, lt_jv self,
                                         const lt_jargs *args, lt_jv *out);

LT_MUST_USE lt_err lt_jinja_filter(lt_jrun *r, lt_jv name, lt_jv self, const lt_jargs *args,
                                   lt_jv *out);
LT_MUST_USE lt_err lt_jinja_test(lt_jrun *r, lt_jv name, lt_jv self, const lt_jargs *args,
                                 bool *out);

/* Further filters, in separate files; a NULL name ends each list. */
extern const lt_jbuiltin lt_jinja_text_filters[], lt_jinja_list_filters[];

/* Methods: whether a type has one, and the call of one. */
bool lt_jinja_has_method(lt_jv self, lt_jv name);
LT_MUST_USE lt_err lt_jinja_call_method(lt_jrun *r, const lt_jmethod *m, const lt_jargs *args,
                                        lt_jv *out);
extern const lt_jbuiltin lt_jinja_str_methods[], lt_jinja_dict_methods[], lt_jinja_list_methods[];

/* Functions of the environment. */
bool lt_jinja_find_global(lt_jv name, lt_jv *out);
LT_MUST_USE lt_err lt_jinja_call_global(lt_jrun *r, int64_t global, const lt_jargs *args,
                                        lt_jv *out);

#endif
