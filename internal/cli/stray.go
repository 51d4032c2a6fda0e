package cli

import (
	"bytes"
	"log"
	"log/slog"
)

// stray brings what libraries say through the standard logger into ours, without what they quote: net/http
// quotes bytes that came from the other side, and there may be a token in them. The command's process is
// its own, so its standard logger is too.
func stray(logger *slog.Logger) *slog.Logger {
	log.SetFlags(0)
	log.SetOutput(strayLines{logger})
	return logger
}

type strayLines struct{ to *slog.Logger }

func (s strayLines) Write(line []byte) (int, error) {
	said, _, quoted := bytes.Cut(bytes.TrimSpace(line), []byte(`"`))
	s.to.Debug("a library said", "text", string(said), "quoted", quoted)
	return len(line), nil
}
