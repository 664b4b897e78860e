"""TAP on stdout, for the scripts of this folder. Standard library only.

    tap = Tap(); tap.check("two and two", 2 + 2 == 4); tap.case(function); tap.skip("promtool", "not installed"); sys.exit(tap.end())"""


class Tap:
    def __init__(self, detail_chars=1500):
        self.count = self.failed = 0
        self.detail_chars = detail_chars

    def check(self, name, ok, detail=""):
        """One result. Details of a failure are printed as one line, so that none of it reads as
        TAP."""
        self.count += 1
        self.failed += not ok
        why = "" if ok else "\n  # " + " ".join(str(detail)[:self.detail_chars].splitlines())
        print(f"{'ok' if ok else 'not ok'} {self.count} - {name}{why}", flush=True)

    def skip(self, name, why):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {why}", flush=True)

    def case(self, function):
        """A test that raises an exception is a failure like any other, and the rest still runs."""
        try:
            function()
        except Exception as e:
            self.check(function.__name__, False, repr(e)[:800])
        return function

    def end(self):
        """Print the plan; returns the exit status of the script."""
        print(f"1..{self.count}")
        return int(self.failed > 0)
