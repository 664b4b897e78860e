/* group_impl.h: the internals of a group: group_read.c reads it from the request, group.c runs it,
 * group_write.c writes its report. */
#ifndef LT_SERVE_GROUP_IMPL_H
#define LT_SERVE_GROUP_IMPL_H

#include "data/check/checker.h"
#include "lateen/select.h"
#include "serve/api/align/confidence.h"
#include "serve/api/reply.h"
#include "serve/api/align/tournament.h"

#define LT_GROUP_MOST 128 /* Most candidates, as for 'n' and 'best_of'. */

typedef struct {
    const char *name, *rule; /* rule NULL: the rule has the same name. */
    bool halves;             /* The worst are cut on the way. */
    /* The candidates are the texts that a beam search finds. */
    bool beam;
    bool tournament;                             /* The served model judges them in pairs. */
    bool confidence;                             /* DeepConf: see confidence.h. */
    bool (*guide)(lt_reply *j, lt_api_error *e); /* If not NULL, there is no group: see guide.h. */
} lt_group_method;

typedef enum {
    LT_SCORE_MEAN_LOGPROB,
    LT_SCORE_LOGPROB,
    LT_SCORE_PROBABILITY,
    LT_SCORE_CONFIDENCE,
    LT_SCORE_REWARD,
    LT_SCORE_CHECK,
    LT_SCORE_BEAM,
    LT_SCORE_WINS
} lt_group_score;

typedef struct {
    const char *name;
    int top;       /* Number of alternatives that the engine must report with each token. */
    bool positive; /* It is never negative, so it can be a weight of votes. */
} lt_group_score_row;
extern const lt_group_score_row lt_group_scores[];

typedef struct lt_group_candidate lt_group_candidate;

/* A candidate's text, or its beginning, and the score of it. */
typedef struct {
    lt_part part; /* Its request to the reward model. */
    lt_group_candidate *of;
    bool known;
    double score;
} lt_group_text;

struct lt_group_candidate {
    bool ended, cut; /* ended: and its score is known. */
    double score, probability;
    int32_t answer;           /* Index among the group's answers; -1: none. */
    lt_confidence confidence; /* Confidence in its tokens, while the score asks for it. */
    lt_group_text whole;
    lt_group_text **begun; /* (n_begun) its beginning after each `every` tokens */
    int64_t n_begun;
};

typedef struct {
    lt_checker *checker; /* Accepts every text whose answer is equal to it. */
    char *text;
} lt_group_answer;

struct lt_group {
    const lt_group_method *method;
    const lt_select_rule *rule;
    lt_select_options o;
    lt_group_score score;
    bool scored; /* Votes only: weighted by the score. */
    lt_check_kind extract;
    lt_checker *check; /* Checker of the reward. */
    uint64_t seed;
    int64_t n, next_cut;   /* next_cut: tokens of each candidate at which the worst are cut. */
    int64_t reward_tokens; /* Number of tokens that the reward model has read. */
    /* Candidates [from, until) run in this round; earlier ones have ended. */
    int64_t from, until;
    /* DeepConf's threshold, and the leading answer's share of the votes. */
    double least, consensus;
    const char *stopped_by;
    lt_tournament *tournament;      /* Once all candidates have ended. */
    lt_group_candidate *candidates; /* (n) */
    lt_group_answer *answers;       /* (n_answers) */
    int n_answers;
    lt_selection kept; /* chosen: index among all candidates. */
};

/* Append the text that is judged: what the formatter calls the answer, without the reasoning. */
void lt_group_text_of(lt_reply_choice *c, lt_json_out *text);

#endif
