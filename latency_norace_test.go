//go:build !race

package sqlstreams_test

// raceDetector says whether everything runs several times slower than it would.
const raceDetector = false
