package manifest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write puts the document into a file, in one step: whoever reads the file sees the old text or the new,
// never a part, and after an error the old one is there. A file that exists keeps its permissions, and
// a symbolic link stays one and its target is written; a new file is readable as the process's umask
// says. Nothing is checked by the contract: see [Manifest.Check].
func (m *Manifest) Write(path string) (err error) {
	mode := fs.FileMode(0o666)
	info, err := os.Stat(path)
	exists := err == nil
	switch {
	case exists && !info.Mode().IsRegular():
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("not a regular file")}
	case exists:
		mode = info.Mode().Perm()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		if _, err := os.Lstat(path); err == nil {
			return &fs.PathError{Op: "write", Path: path, Err: errors.New("a symbolic link to nothing")}
		}
	}

	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%s.tmp", filepath.Base(path), rand.Text()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}()
	_, err = f.Write(m.doc)
	if err == nil && exists {
		err = f.Chmod(mode) // the umask took bits that the old file had
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(temp, path)
}
