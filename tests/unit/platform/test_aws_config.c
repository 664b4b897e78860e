/* Keys, regions and endpoints from the places where the AWS command line finds them, and their
 * precedence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "platform/copy/aws_config.h"

static char folder[64], credentials[96], config[96];

static int begin(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/lateen-aws-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(credentials, sizeof credentials, "%s/credentials", folder);
    (void)snprintf(config, sizeof config, "%s/config", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

static int clear(void **state) {
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_DEFAULT_PROFILE",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ENDPOINT_URL_S3",
                                        "AWS_ENDPOINT_URL",
                                        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                        "AWS_USE_FIPS_ENDPOINT",
                                        "AWS_USE_DUALSTACK_ENDPOINT"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsetenv(names[i]);
    }
    setenv("AWS_SHARED_CREDENTIALS_FILE", credentials, 1);
    setenv("AWS_CONFIG_FILE", config, 1);
    unlink(credentials);
    unlink(config);
    return 0;
}

static void put(const char *path, const char *text) {
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
}

static lt_err get(lt_aws_config *c, const char *profile) {
    return lt_aws_config_read(c, &(lt_aws_wanted){profile, "", "", false});
}

static void ini_files(void **state) {
    static const char text[] = "before = 1\n# c\n; c\n[ a ]\nx = 1\ny=2 # not a comment\n\n[b]\n"
                               "s3 =\n  endpoint_url = u\n\tx = in\nx = 2\r\n x = 3\n[a]\nx = 9\n";
    static const struct {
        const char *section, *name, *value; /* NULL: it is missing. */
    } rows[] = {{"a", "x", "9"},
                {"a", "y", "2 # not a comment"},
                {"b", "s3.endpoint_url", "u"},
                {"b", "s3.x", "in"},
                {"b", "x", "3"},
                {"b", "endpoint_url", NULL},
                {"c", "x", NULL},
                {"", "before", NULL},
                {"b", "s3", NULL}};
    static const char *const wrong[] = {"[a\n", "[a]\nx\n", "x = 1\n[b] y\n"};
    char out[32];
    bool found;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_ini_get(text, rows[i].section, rows[i].name, out, sizeof out, &found),
                         LT_OK);
        assert_int_equal(found, rows[i].value != NULL);
        if (found) {
            assert_string_equal(out, rows[i].value);
        }
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(lt_ini_get(wrong[i], "a", "z", out, sizeof out, &found), LT_ERR_FORMAT);
    }
    assert_int_equal(lt_ini_get("[a]\nx=12345678\n", "a", "x", out, 9, &found), LT_OK);
    assert_int_equal(lt_ini_get("[a]\nx=12345678\n", "a", "x", out, 8, &found), LT_ERR_LIMIT);
    assert_int_equal(lt_ini_get(NULL, "a", "x", out, 8, &found), LT_OK);
    assert_false(found);
}

static void order_of_precedence(void **state) {
    lt_aws_config c;
    (void)state;
    put(credentials, "[default]\naws_access_key_id = file\naws_secret_access_key = fs\n"
                     "aws_session_token = ft\n[other]\naws_access_key_id = other\n"
                     "aws_secret_access_key = os\n");
    put(config, "[default]\nregion = r-1\nendpoint_url = http://config\n[profile other]\n"
                "region = r-2\n[profile last]\naws_access_key_id = last\n"
                "aws_secret_access_key = ls\n");
    assert_int_equal(get(&c, ""), LT_OK);
    assert_string_equal(c.access, "file");
    assert_string_equal(c.secret, "fs");
    assert_string_equal(c.token, "ft");
    assert_string_equal(c.region, "r-1");
    assert_string_equal(c.endpoint, "http://config");
    setenv("AWS_PROFILE", "other", 1);
    assert_int_equal(get(&c, ""), LT_OK);
    assert_string_equal(c.access, "other");
    assert_string_equal(c.token, ""); /* Not the token of other keys. */
    assert_string_equal(c.region, "r-2");
    assert_string_equal(c.endpoint, "");
    assert_int_equal(get(&c, "last"), LT_OK);
    assert_string_equal(c.access, "last");
    assert_string_equal(c.region, "us-east-1");
    setenv("AWS_ACCESS_KEY_ID", "env", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "es", 1);
    setenv("AWS_DEFAULT_REGION", "r-3", 1);
    setenv("AWS_ENDPOINT_URL", "http://all", 1);
    assert_int_equal(get(&c, ""), LT_OK);
    assert_string_equal(c.access, "env");
    assert_string_equal(c.region, "r-3");
    assert_string_equal(c.endpoint, "http://all");
    setenv("AWS_REGION", "r-4", 1);
    setenv("AWS_ENDPOINT_URL_S3", "http://s3", 1);
    assert_int_equal(get(&c, "last"), LT_OK); /* A profile that was requested is used. */
    assert_string_equal(c.access, "last");
    assert_string_equal(c.region, "r-4");
    assert_string_equal(c.endpoint, "http://s3");
    assert_int_equal(lt_aws_config_read(&c, &(lt_aws_wanted){"", "r-5", "http://own", false}),
                     LT_OK);
    assert_string_equal(c.region, "r-5");
    assert_string_equal(c.endpoint, "http://own");
}

static void missing_keys(void **state) {
    lt_aws_config c;
    (void)state;
    assert_int_equal(get(&c, ""), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), credentials));
    assert_int_equal(lt_aws_config_read(&c, &(lt_aws_wanted){"", "", "", true}), LT_OK);
    assert_true(c.anonymous);
    setenv("AWS_ACCESS_KEY_ID", "only", 1);
    assert_int_equal(get(&c, ""), LT_ERR_ARG);
    unsetenv("AWS_ACCESS_KEY_ID");
    put(config, "[profile p]\ncredential_process = /bin/secret\n[profile q]\nrole_arn = r\n");
    assert_int_equal(get(&c, "p"), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "credential_process"));
    assert_int_equal(get(&c, "q"), LT_ERR_UNSUPPORTED);
    put(credentials, "[default]\naws_access_key_id = AK\naws_secret_access_key : hidden\n");
    assert_int_equal(get(&c, ""), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "line 3"));
    assert_null(strstr(lt_error_message(), "hidden"));
}

/* Keys in both files: those of the credentials file count. */
static void credentials_before_config(void **state) {
    lt_aws_config c;
    (void)state;
    put(credentials, "[default]\naws_access_key_id = A\naws_secret_access_key = S\n");
    put(config, "[default]\naws_access_key_id = B\naws_secret_access_key = T\nregion = r\n");
    assert_int_equal(get(&c, ""), LT_OK);
    assert_string_equal(c.access, "A");
    assert_string_equal(c.secret, "S");
    assert_string_equal(c.region, "r");
}

/* What botocore 1.44.8 makes of the same files: `says` is the key that it uses; an error if it
 * would use keys that are not in the files (those of a role, or of a process), or none. */
static void keys_as_in_botocore(void **state) {
#define KEYS "aws_access_key_id = A\naws_secret_access_key = S\n"
    static const struct {
        const char *credentials, *config, *profile, *variable, *value;
        lt_err err;
        const char *says, *region, *endpoint, *addressing;
    } rows[] = {
        {"[p]\n" KEYS, "[profile p]\nrole_arn = r\nsource_profile = p\n", "p", "", "",
         LT_ERR_UNSUPPORTED, "role_arn", "", "", ""},
        {"[p]\n" KEYS "role_arn = r\n", "", "p", "", "", LT_ERR_UNSUPPORTED, "role_arn", "", "",
         ""},
        {"[p]\n" KEYS, "[profile p]\nsso_start_url = u\n", "p", "", "", LT_ERR_UNSUPPORTED,
         "sso_start_url", "", "", ""},
        {"[p]\n" KEYS, "[profile p]\nsso_session = u\n", "p", "", "", LT_ERR_UNSUPPORTED,
         "sso_session", "", "", ""},
        {"[p]\n" KEYS, "[profile p]\nweb_identity_token_file = u\n", "p", "", "",
         LT_ERR_UNSUPPORTED, "web_identity_token_file", "", "", ""},
        {"[p]\n" KEYS, "[profile p]\ncredential_process = c\n", "p", "", "", LT_OK, "A",
         "us-east-1", "", ""},
        {"", "[profile p]\n" KEYS "credential_process = c\n", "p", "", "", LT_ERR_UNSUPPORTED,
         "credential_process", "", "", ""},
        {"[default]\n" KEYS, "", "", "AWS_WEB_IDENTITY_TOKEN_FILE", "f", LT_ERR_UNSUPPORTED,
         "AWS_WEB_IDENTITY_TOKEN_FILE", "", "", ""},
        {"[default]\n" KEYS, "", "default", "AWS_WEB_IDENTITY_TOKEN_FILE", "f", LT_OK, "A",
         "us-east-1", "", ""},
        {"", "", "", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "u", LT_ERR_UNSUPPORTED,
         "AWS_CONTAINER_CREDENTIALS_FULL_URI", "", "", ""},
        {"", "", "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "u", LT_ERR_UNSUPPORTED,
         "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "", "", ""},
        {"[default]\n" KEYS, "[default]\naws_session_token = T\n", "", "", "", LT_OK, "A",
         "us-east-1", "", ""},
        {"[default]\n" KEYS, "", "", "AWS_PROFILE", "nope", LT_ERR_NOT_FOUND, "'nope'", "", "", ""},
        {"[default]\n" KEYS, "", "nope", "", "", LT_ERR_NOT_FOUND, "'nope'", "", "", ""},
        {"[a]\n" KEYS, "", "", "AWS_DEFAULT_PROFILE", "a", LT_OK, "A", "us-east-1", "", ""},
        {"[default]\nAWS_Access_Key_ID = A\naws_secret_access_key = S\nregion = r-9\n"
         "endpoint_url = http://c\n",
         "[default]\nregion = r-1\n", "", "", "", LT_OK, "A", "r-9", "http://c", ""},
        {"[my p]\n" KEYS, "[profile   \"my p\"]\nregion = r-2\n", "my p", "", "", LT_OK, "A", "r-2",
         "", ""},
        {"[p]\n" KEYS, "[profile\t'p']\nregion = r-2\n[profilep]\nregion = r-3\n", "p", "", "",
         LT_OK, "A", "r-2", "", ""},
        {"", "[default]\nregion = r-1\n[profile default]\n" KEYS "region = r-3\n", "", "", "",
         LT_OK, "A", "r-3", "", ""},
        {"[default]\n" KEYS, "[default]\ns3 =\n  addressing_style = path\n", "", "", "", LT_OK, "A",
         "us-east-1", "", "path"},
        {"[default]\n" KEYS, "[default]\ns3 =\n  addressing_style = host\n", "", "", "", LT_ERR_ARG,
         "'host'", "", "", ""},
        {"[default]\n" KEYS, "[default]\nendpoint_url = http://c\n", "",
         "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True", LT_OK, "A", "us-east-1", "", ""},
        {"[default]\n" KEYS "ignore_configured_endpoint_urls = true\n", "", "", "AWS_ENDPOINT_URL",
         "http://e", LT_OK, "A", "us-east-1", "", ""},
        /* Refused here; botocore would go elsewhere, or refuses, too. */
        {"[default]\n" KEYS, "", "", "AWS_USE_FIPS_ENDPOINT", "true", LT_ERR_UNSUPPORTED,
         "use_fips_endpoint", "", "", ""},
        {"[default]\n" KEYS, "", "", "AWS_USE_FIPS_ENDPOINT", "false", LT_OK, "A", "us-east-1", "",
         ""},
        {"[default]\n" KEYS, "[default]\ns3 =\n  use_accelerate_endpoint = true\n", "", "", "",
         LT_ERR_UNSUPPORTED, "use_accelerate_endpoint", "", "", ""},
        {"[default]\n" KEYS, "[default]\ns3 =\n  use_accelerate_endpoint = true\n", "",
         "AWS_ENDPOINT_URL", "http://e", LT_OK, "A", "us-east-1", "http://e", ""},
        {"[default]\n" KEYS, "", "", "AWS_REGION", "evil.com/x", LT_ERR_ARG, "'evil.com/x'", "", "",
         ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_aws_config c;
        (void)clear(state);
        put(credentials, rows[i].credentials);
        put(config, rows[i].config);
        if (rows[i].variable[0] != '\0') {
            setenv(rows[i].variable, rows[i].value, 1);
        }
        assert_int_equal(get(&c, rows[i].profile), rows[i].err);
        if (rows[i].err != LT_OK) {
            assert_non_null(strstr(lt_error_message(), rows[i].says));
            continue;
        }
        assert_string_equal(c.access, rows[i].says);
        assert_string_equal(c.secret, "S");
        assert_string_equal(c.token, "");
        assert_string_equal(c.region, rows[i].region);
        assert_string_equal(c.endpoint, rows[i].endpoint);
        assert_string_equal(c.addressing, rows[i].addressing);
    }
#undef KEYS
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ini_files),
        cmocka_unit_test_setup(order_of_precedence, clear),
        cmocka_unit_test_setup(missing_keys, clear),
        cmocka_unit_test_setup(credentials_before_config, clear),
        cmocka_unit_test_setup(keys_as_in_botocore, clear),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
