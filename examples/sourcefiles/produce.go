package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams"
)

// SourceFile is the message: a file with its content. Content that does not fit into a message, or is not text, stays where it is and the handler
// reads it there; the rest of the message is the same.
type SourceFile struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Content string `json:"content"`
	OnDisk  bool   `json:"on_disk,omitempty"` // Content is empty: read the file
}

const (
	maxPayload = 1 << 20 // the stream's limit, and its default
	// A batch is one transaction. These bounds keep it far below what the library sends at once.
	batchMessages = 256
	batchBytes    = 2 << 20
)

// message makes a file's message.
func message(root string, file sourceFile) (*SourceFile, error) {
	content, err := readSource(root, file.path)
	if err != nil {
		return nil, err
	}
	m := &SourceFile{Path: file.path, Size: int64(len(content)), Content: string(content)}
	fits, err := m.fits()
	if err != nil {
		return nil, err
	}
	if !fits {
		m.Content, m.OnDisk = "", true
	}
	return m, nil
}

func (m *SourceFile) fits() (bool, error) {
	// JSON would replace what is not text.
	if !utf8.ValidString(m.Content) {
		return false, nil
	}
	// JSON needs at most six bytes for one, so that nearly every file need not be encoded to know.
	if len(m.Content) < maxPayload/6-4096 {
		return true, nil
	}
	encoded, err := json.Marshal(m)
	return len(encoded) <= maxPayload, err
}

// content returns the file's content, from the message or from the disk.
func (m *SourceFile) content(root string) ([]byte, error) {
	if m.OnDisk {
		return readSource(root, m.Path)
	}
	return []byte(m.Content), nil
}

// produceFiles sends every file before anybody reads, in batches.
func produceFiles(ctx context.Context, tale *story, p *place, files *fileSet) error {
	client, err := p.client(ctx, tale)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	stream, err := sqlstreams.RegisterStream[SourceFile](ctx, client, streamName, &sqlstreams.StreamConfig{MaxPayload: maxPayload})
	if err != nil {
		return err
	}
	producer := stream.Producer(nil)

	began := time.Now()
	var batch []sqlstreams.Outgoing[SourceFile]
	var size int64
	batches, onDisk, produced := 0, 0, 0
	send := func() error {
		if _, err := producer.ProduceBatch(ctx, batch); err != nil {
			return err
		}
		batches++
		produced += len(batch)
		batch, size = batch[:0], 0
		tale.progress("produced %s of %s", count(produced), count(len(files.list)))
		return nil
	}
	for _, file := range files.list {
		m, err := message(files.root, file)
		if err != nil {
			return fmt.Errorf("make a message of %s: %w", file.path, err)
		}
		if m.OnDisk {
			onDisk++
		}
		if len(batch) == batchMessages || len(batch) > 0 && size+int64(len(m.Content)) > batchBytes {
			if err := send(); err != nil {
				return err
			}
		}
		batch = append(batch, sqlstreams.Outgoing[SourceFile]{Payload: m})
		size += int64(len(m.Content))
	}
	if err := send(); err != nil {
		return err
	}
	took := time.Since(began)
	tale.say("produced", "%s messages to stream %s in %s batches, %s (%s a second)", count(produced), streamName, count(batches), seconds(took),
		count(int(float64(produced)/took.Seconds())))
	if onDisk > 0 {
		tale.more("%s files are no text of at most %d MiB: the handlers read those from the disk", count(onDisk), maxPayload>>20)
	}
	return nil
}

// sabotage deletes a message that no group has claimed yet, past the library: what no correct run could do, and what the comparison must find.
func sabotage(ctx context.Context, tale *story, p *place) error {
	client, err := p.client(ctx, tale)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	stream, err := client.GetStream(ctx, streamName)
	if err != nil {
		return err
	}
	log := quote(p.schema) + "." + quote(fmt.Sprintf("log_%d", stream.ID))
	var id int64
	var path string
	sql := `delete from ` + log + ` where id = (select (min(id) + max(id)) / 2 from ` + log + `) returning id, payload ->> 'path'`
	if err := p.pool.QueryRow(ctx, sql).Scan(&id, &path); err != nil {
		return fmt.Errorf("sabotage: %w", err)
	}
	tale.alarm("sabotage", "deleted message %d from the stream's table, behind the library's back:", id)
	tale.more("%s", path)
	return nil
}
