// Package cli is the command line of Backline: every command, on given streams, arguments and
// environment, so that tests run it in their own process. cmd/backline calls [Run] and nothing else.
//
// What all commands keep to (cli.md): exit code 0 is fine, 1 is that the thing checked or run failed, 2
// is wrong usage; an error is one line on standard error that says what to do; results go to standard
// output; each flag can be given as BACKLINE_<FLAG> in the environment, where the command line wins.
package cli
