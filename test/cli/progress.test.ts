import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { Progress } from '../../dist/cli/progress.js'
import { stopClock } from '../support/time.ts'

function started(t: TestContext, isTTY: boolean) {
  const clock = stopClock(t)
  const written: string[] = []
  const progress = new Progress({ isTTY, write: (text) => written.push(text) })
  return { clock, written, progress }
}

test('progress: work of less than a second tells nothing', (t) => {
  for (const isTTY of [false, true]) {
    const { clock, written, progress } = started(t, isTTY)
    progress.step('reading', 50e6)
    progress.step('importing')
    clock.pass(999)
    progress.at(900, 1000, 'plants')
    progress.end()
    assert.deepEqual(written, [])
    clock.restore()
  }
})

test('progress: elsewhere than on a terminal, a line a second says how far it is', (t) => {
  const { clock, written, progress } = started(t, false)
  progress.step('importing')
  for (let done = 0; done < 5000; done += 100) {
    progress.at(done, 10_000, 'plants')
    clock.pass(50)
  }
  progress.end()
  assert.deepEqual(written, [
    'importing: 2000 of 10000 plants, 2000 a second, 4 s left\n',
    'importing: 4000 of 10000 plants, 2000 a second, 3 s left\n',
  ])
})

test('progress: on a terminal one line is drawn again, and makes room for others', (t) => {
  const { clock, written, progress } = started(t, true)
  clock.pass(1000)
  progress.step('writing')
  for (const bytes of [0, 40e6, 40e6, 60e6]) {
    progress.at(bytes, 100e6, 'MB')
    clock.pass(100)
  }
  progress.tell('not imported: row 1')
  progress.at(80e6, undefined, 'MB')
  progress.end()
  progress.end()
  assert.deepEqual(written, [
    '\r\x1b[Kwriting: 40 of 100 MB, 200 a second, 1 s left',
    '\r\x1b[Knot imported: row 1\n',
    '\r\x1b[Kwriting: 80 MB, 200 a second',
    '\r\x1b[K',
  ])
})

test('progress: a long step that cannot tell how far it is, is named when it begins', (t) => {
  const { clock, written, progress } = started(t, false)
  progress.step('checking', 100e6)
  clock.pass(1000)
  progress.step('checking again', 1e6)
  assert.deepEqual(written, ['checking: 100 MB\n', 'checking again: 1 MB\n'])
})
