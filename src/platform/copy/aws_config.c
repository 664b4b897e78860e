/* aws_config.c: see aws_config.h. Messages name files, profiles and lines, never a value. */
#include "platform/copy/aws_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/crypto.h>

#include "base/error.h"
#include "base/file.h"

#define FILE_MOST ((size_t)1 << 20)

typedef struct {
    const char *text;
    size_t n;
} slice;

static bool blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static slice trim(const char *text, size_t n) {
    while (n > 0 && blank(text[n - 1])) {
        n--;
    }
    while (n > 0 && blank(*text)) {
        text++;
        n--;
    }
    return (slice){text, n};
}

static bool is(slice s, const char *text) {
    return strlen(text) == s.n && memcmp(s.text, text, s.n) == 0;
}

/* Whether the name of this line, below `parent` if it is indented, equals `name`. */
static bool names(slice parent, slice own, const char *name) {
    if (parent.n == 0) {
        return strlen(name) == own.n && strncasecmp(own.text, name, own.n) == 0;
    }
    return strncmp(name, parent.text, parent.n) == 0 && name[parent.n] == '.' &&
           is(own, name + parent.n + 1);
}

/* Whether it is [section]. The second of two words may be in quotes, after any number of
 * blanks. */
static bool is_section(slice own, const char *section) {
    const size_t first = strcspn(section, " ");
    slice rest;
    if (section[first] == '\0' || own.n <= first || memcmp(own.text, section, first) != 0 ||
        !blank(own.text[first])) {
        return is(own, section);
    }
    rest = trim(own.text + first, own.n - first);
    if (rest.n >= 2 && (rest.text[0] == '"' || rest.text[0] == '\'') &&
        rest.text[rest.n - 1] == rest.text[0]) {
        rest = (slice){rest.text + 1, rest.n - 2};
    }
    return is(rest, section + first + 1);
}

lt_err lt_ini_get(const char *text, const char *section, const char *name, char *out, size_t room,
                  bool *found) {
    bool inside = false;
    slice parent = {0};
    long line = 0;

    *found = false;
    for (const char *p = text; p != NULL && *p != '\0';) {
        const size_t n = strcspn(p, "\n");
        const slice whole = trim(p, n);
        const char *equal = memchr(whole.text, '=', whole.n);
        const bool indented = whole.text > p;
        p += n + (p[n] == '\n');
        line++;
        if (whole.n == 0 || whole.text[0] == '#' || whole.text[0] == ';') {
            continue;
        }
        if (whole.text[0] == '[' && !indented) {
            if (whole.text[whole.n - 1] != ']') {
                LT_FAIL(LT_ERR_FORMAT, "line %ld: a section without ']'", line);
            }
            inside = is_section(trim(whole.text + 1, whole.n - 2), section);
            *found = *found || (inside && name == NULL);
            parent.n = 0;
            continue;
        }
        if (equal == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "line %ld: neither a section nor 'name = value'", line);
        }
        const slice own = trim(whole.text, (size_t)(equal - whole.text));
        const slice value = trim(equal + 1, whole.n - (size_t)(equal + 1 - whole.text));
        if (!indented) {
            parent = value.n == 0 ? own : (slice){0};
        }
        if (inside && name != NULL && value.n > 0 &&
            names(indented ? parent : (slice){0}, own, name)) {
            if (value.n >= room) {
                LT_FAIL(LT_ERR_LIMIT, "line %ld: '%s' has %zu bytes; at most %zu", line, name,
                        value.n, room - 1);
            }
            memcpy(out, value.text, value.n);
            out[value.n] = '\0';
            *found = true; /* The last occurrence counts, as for the AWS command line. */
        }
    }
    return LT_OK;
}

typedef struct {
    char path[LT_PATH_BYTES];
    char *text; /* NULL: there is no such file. */
    char section[256];
    bool has_section;
} ini;

typedef struct {
    ini credentials, config;
} files;

static void ini_close(ini *f) {
    if (f->text != NULL) {
        OPENSSL_cleanse(f->text, strlen(f->text));
        free(f->text);
    }
}

static lt_err ini_open(ini *f, const char *variable, const char *fallback) {
    const char *own = getenv(variable), *home = getenv("HOME");
    size_t bytes = 0;
    lt_err err;
    const int n = own != NULL && own[0] != '\0' ? snprintf(f->path, sizeof f->path, "%s", own)
                                                : snprintf(f->path, sizeof f->path, "%s/%s",
                                                           home != NULL ? home : "", fallback);
    if (n >= (int)sizeof f->path) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a path of %d bytes", variable, n);
    }
    err = lt_file_read(&f->text, &bytes, f->path, FILE_MOST);
    if (err == LT_ERR_NOT_FOUND) {
        f->text = NULL;
        return LT_OK;
    }
    LT_TRY(err);
    if (strlen(f->text) != bytes) {
        LT_FAIL(LT_ERR_FORMAT, "%s holds a zero byte", f->path);
    }
    return LT_OK;
}

/* Read a value of the file's section, if `out` has none yet. */
static lt_err take(const ini *f, const char *name, char *out, size_t room) {
    bool found = false;
    if (out[0] != '\0') {
        return LT_OK;
    }
    if (lt_ini_get(f->text, f->section, name, out, room, &found) != LT_OK) {
        return lt_error_prefix(LT_ERR_FORMAT, "%s", f->path);
    }
    return LT_OK;
}

static lt_err find_section(ini *f) {
    if (lt_ini_get(f->text, f->section, NULL, NULL, 0, &f->has_section) != LT_OK) {
        return lt_error_prefix(LT_ERR_FORMAT, "%s", f->path);
    }
    return LT_OK;
}

/* Read the value of the first variable that is set, if `out` has none yet. */
static lt_err take_variable(char *out, size_t room, const char *first, const char *second) {
    const char *const variables[] = {first, second};
    for (int i = 0; i < 2 && out[0] == '\0'; i++) {
        const char *value = variables[i] != NULL ? getenv(variables[i]) : NULL;
        if (value != NULL && snprintf(out, room, "%s", value) >= (int)room) {
            out[0] = '\0';
            LT_FAIL(LT_ERR_LIMIT, "%s has %zu bytes; at most %zu", variables[i], strlen(value),
                    room - 1);
        }
    }
    return LT_OK;
}

/* Read the keys in a file, if none have been found yet. */
static lt_err take_keys(lt_aws_config *c, const ini *f) {
    if (c->access[0] != '\0') {
        return LT_OK; /* A file's settings for other keys do not apply to these. */
    }
    LT_TRY(take(f, "aws_access_key_id", c->access, sizeof c->access));
    if (c->access[0] != '\0') {
        LT_TRY(take(f, "aws_secret_access_key", c->secret, sizeof c->secret));
        LT_TRY(take(f, "aws_session_token", c->token, sizeof c->token));
    }
    return LT_OK;
}

static lt_err refuse(const char *where, const char *profile, const char *way) {
    LT_FAIL(LT_ERR_UNSUPPORTED,
            "%s: profile '%s' gets its keys by '%s', which is not supported; `aws configure "
            "export-credentials --profile %s --format env` prints them as variables to set",
            where, profile, way, profile);
}

/* Refuse a profile whose keys come from elsewhere: the AWS command line would prefer them to keys
 * that the profile also has. */
static lt_err refuse_way(const files *f, const char *profile, const char *way) {
    char value[1024] = "";
    LT_TRY(take(&f->credentials, way, value, sizeof value));
    LT_TRY(take(&f->config, way, value, sizeof value));
    return value[0] == '\0' ? LT_OK : refuse(f->config.path, profile, way);
}

static lt_err refuse_variable(const char *name, const char *profile) {
    const char *value = getenv(name);
    return value == NULL || value[0] == '\0' ? LT_OK : refuse("the environment", profile, name);
}

/* Find the keys, in the order of botocore's create_credential_resolver. */
static lt_err read_keys(lt_aws_config *c, const lt_aws_wanted *w, const char *profile,
                        const files *f) {
    static const char *const before[] = {"role_arn", "web_identity_token_file", "sso_session",
                                         "sso_start_url"};
    const bool own = w->profile[0] == '\0'; /* The variables apply. */
    if (own) {
        LT_TRY(take_variable(c->access, sizeof c->access, "AWS_ACCESS_KEY_ID", NULL));
    }
    if (c->access[0] != '\0') {
        LT_TRY(take_variable(c->secret, sizeof c->secret, "AWS_SECRET_ACCESS_KEY", NULL));
        LT_TRY(take_variable(c->token, sizeof c->token, "AWS_SESSION_TOKEN", NULL));
    } else {
        for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
            LT_TRY(refuse_way(f, profile, before[i]));
        }
        if (own) {
            LT_TRY(refuse_variable("AWS_WEB_IDENTITY_TOKEN_FILE", profile));
        }
        LT_TRY(take_keys(c, &f->credentials));
        if (c->access[0] == '\0') {
            LT_TRY(refuse_way(f, profile, "credential_process"));
        }
        LT_TRY(take_keys(c, &f->config));
    }
    if (c->access[0] == '\0') {
        LT_TRY(refuse_variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", profile));
        LT_TRY(refuse_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI", profile));
        LT_FAIL(LT_ERR_NOT_FOUND,
                "no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write profile "
                "'%s' into %s; --anonymous reads public buckets without keys",
                profile, f->credentials.path);
    }
    if (c->secret[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "an access key for S3 without its secret (AWS_SECRET_ACCESS_KEY, or "
                            "aws_secret_access_key of the profile)");
    }
    return LT_OK;
}

/* Settings of the profile other than its keys: from the credentials file, or from the config
 * file. */
static lt_err take_setting(const files *f, const char *name, char *out, size_t room) {
    LT_TRY(take(&f->credentials, name, out, room));
    return take(&f->config, name, out, room);
}

/* Refuse settings that change where requests go and are not supported. */
static lt_err refuse_settings(const files *f) {
    static const struct {
        const char *name, *variable; /* variable NULL: there is no variable. */
    } rows[] = {{"use_fips_endpoint", "AWS_USE_FIPS_ENDPOINT"},
                {"use_dualstack_endpoint", "AWS_USE_DUALSTACK_ENDPOINT"},
                {"s3.use_dualstack_endpoint", NULL},
                {"s3.use_accelerate_endpoint", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char value[16] = "";
        LT_TRY(take_variable(value, sizeof value, rows[i].variable, NULL));
        LT_TRY(take_setting(f, rows[i].name, value, sizeof value));
        if (strcasecmp(value, "true") == 0) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "'%s' is set for S3, which is not supported; --endpoint names an endpoint",
                    rows[i].name);
        }
    }
    return LT_OK;
}

static lt_err read_endpoint(lt_aws_config *c, const files *f) {
    char services[200] = "", ignored[16] = "";
    LT_TRY(take_variable(ignored, sizeof ignored, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", NULL));
    LT_TRY(take_setting(f, "ignore_configured_endpoint_urls", ignored, sizeof ignored));
    if (strcasecmp(ignored, "true") == 0) {
        return LT_OK;
    }
    LT_TRY(
        take_variable(c->endpoint, sizeof c->endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"));
    LT_TRY(take_setting(f, "services", services, sizeof services));
    if (services[0] != '\0' && c->endpoint[0] == '\0') {
        ini s = f->config;
        (void)snprintf(s.section, sizeof s.section, "services %s", services);
        LT_TRY(take(&s, "s3.endpoint_url", c->endpoint, sizeof c->endpoint));
    }
    return take_setting(f, "endpoint_url", c->endpoint, sizeof c->endpoint);
}

static lt_err read_place(lt_aws_config *c, const files *f) {
    LT_TRY(take_variable(c->region, sizeof c->region, "AWS_REGION", "AWS_DEFAULT_REGION"));
    LT_TRY(take_setting(f, "region", c->region, sizeof c->region));
    if (c->region[0] == '\0') {
        (void)snprintf(c->region, sizeof c->region, "us-east-1");
    }
    /* The region becomes part of a host name. */
    for (const char *p = c->region; *p != '\0'; p++) {
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              *p == '-')) {
            LT_FAIL(LT_ERR_ARG,
                    "'%s' is not a region: it has characters other than letters, digits and '-'",
                    c->region);
        }
    }
    LT_TRY(take_setting(f, "s3.addressing_style", c->addressing, sizeof c->addressing));
    if (c->addressing[0] != '\0' && strcmp(c->addressing, "auto") != 0 &&
        strcmp(c->addressing, "path") != 0 && strcmp(c->addressing, "virtual") != 0) {
        LT_FAIL(LT_ERR_ARG, "s3.addressing_style '%s' is none of auto, path and virtual",
                c->addressing);
    }
    LT_TRY(read_endpoint(c, f));
    return c->endpoint[0] == '\0' ? refuse_settings(f) : LT_OK;
}

/* [profile default] and [default] are both allowed for the default. */
static lt_err find_sections(files *f, const char *profile) {
    LT_TRY(ini_open(&f->credentials, "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"));
    LT_TRY(ini_open(&f->config, "AWS_CONFIG_FILE", ".aws/config"));
    (void)snprintf(f->credentials.section, sizeof f->credentials.section, "%s", profile);
    (void)snprintf(f->config.section, sizeof f->config.section, "profile %s", profile);
    LT_TRY(find_section(&f->credentials));
    LT_TRY(find_section(&f->config));
    if (!f->config.has_section && strcmp(profile, "default") == 0) {
        (void)snprintf(f->config.section, sizeof f->config.section, "default");
        LT_TRY(find_section(&f->config));
    }
    return LT_OK;
}

lt_err lt_aws_config_read(lt_aws_config *out, const lt_aws_wanted *w) {
    lt_err err = LT_OK;
    lt_aws_config c = {.anonymous = w->anonymous};
    char profile[200] = "";
    bool named;
    files f = {0};

    if (snprintf(profile, sizeof profile, "%s", w->profile) >= (int)sizeof profile ||
        snprintf(c.region, sizeof c.region, "%s", w->region) >= (int)sizeof c.region ||
        snprintf(c.endpoint, sizeof c.endpoint, "%s", w->endpoint) >= (int)sizeof c.endpoint) {
        LT_FAIL(LT_ERR_LIMIT, "the profile, region or endpoint for S3 is too long");
    }
    LT_TRY_DONE(take_variable(profile, sizeof profile, "AWS_DEFAULT_PROFILE", "AWS_PROFILE"));
    named = profile[0] != '\0';
    if (!named) {
        (void)snprintf(profile, sizeof profile, "default");
    }
    LT_TRY_DONE(find_sections(&f, profile));
    if (named && !f.credentials.has_section && !f.config.has_section) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "profile '%s' is neither in %s nor in %s", profile,
                     f.credentials.path, f.config.path);
    }
    if (!w->anonymous) {
        LT_TRY_DONE(read_keys(&c, w, profile, &f));
    }
    LT_TRY_DONE(read_place(&c, &f));
    *out = c;
done:
    lt_aws_config_wipe(&c);
    ini_close(&f.credentials);
    ini_close(&f.config);
    return err;
}

void lt_aws_config_wipe(lt_aws_config *c) {
    OPENSSL_cleanse(c, sizeof *c);
}
