package external_test

const childEnv = "BACKLINE_TEST_CHILD"

func childMain() int { return 2 }
