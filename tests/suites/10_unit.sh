# Unit tests of the release build.
unit_programs build
