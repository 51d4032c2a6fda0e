package sqlite_test

// Some tests need a second process: this test binary, started again with the name of what it is to do.
const helperEnv = "BACKLINE_LEDGER_TEST_HELPER"

func help(name string) int { return 2 }
