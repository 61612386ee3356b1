import assert from 'node:assert/strict'
import { statSync } from 'node:fs'
import { test, type TestContext } from 'node:test'
import { checkDirectory, exportToFile } from '../../dist/store/sqljs/inspect.js'
import { importStore } from '../../dist/cli/import.js'
import { Progress } from '../../dist/cli/progress.js'
import { nodeFiles } from '../../dist/store/sqljs/disk/files.js'
import {
  directoryOf,
  killedAfter,
  type LogLine,
  openStore,
  plantsTo,
} from '../store/sqljs/fixtures.ts'
import { temporaryDirectory } from '../support/service.ts'
import { stopClock } from '../support/time.ts'

function started(t: TestContext) {
  const clock = stopClock(t)
  const written: string[] = []
  const progress = new Progress((text) => written.push(text))
  return { clock, written, progress }
}

test('progress: work of less than a second, and the end of longer work, tell nothing', (t) => {
  const { clock, written, progress } = started(t)
  progress.at('importing', 0, 1000, 'plants')
  clock.pass(999)
  progress.at('importing', 900, 1000, 'plants')
  clock.pass(1000)
  progress.at('importing', 1000, 1000, 'plants')
  progress.at('writing', 900, 1000, 'MB')
  assert.deepEqual(written, [])
})

test('progress: a line a second says how far it is, between other lines', (t) => {
  const { clock, written, progress } = started(t)
  for (let done = 0; done < 5000; done += 100) {
    progress.at('importing', done, 10_000, 'plants')
    if (done === 2000) progress.tell('not imported: \x1b row 1')
    clock.pass(50)
  }
  assert.deepEqual(written, [
    'importing: 2000 of 10000 plants, 2000 a second, 4 s left\n',
    'not imported: \\u001b row 1\n',
    'importing: 4000 of 10000 plants, 2000 a second, 3 s left\n',
  ])
})

test('progress: a long step that cannot tell how far it is, is named when it begins', (t) => {
  const { written, progress } = started(t)
  progress.announce('checking', 100e6)
  progress.announce('checking little', 99e6)
  assert.deepEqual(written, ['checking: 100 MB\n'])
})

const LINE = /^(.*): (\d+) of (\d+) MB, \d+ a second, \d+ s left\n$/

test('progress: check, import and a start say how much of a long journal is read', async (t) => {
  const directory = await directoryOf(await killedAfter(plantsTo(100n)))
  const file = `${await temporaryDirectory()}/plants.db`
  await exportToFile(directory, file)
  const { size } = statSync(`${directory}/journal-00000001.log`)
  // Each look at the clock takes 60 ms: a replay then yields after every batch.
  let nowMs = Math.ceil(performance.now())
  t.mock.method(performance, 'now', () => (nowMs += 60))
  const written: string[] = []
  const progress = new Progress((text) => written.push(text))
  assert.match(await checkDirectory(directory, nodeFiles, progress), /is sound: 100 plants/)
  assert.ok(written.length > 1)
  for (const line of written) assert.equal(LINE.exec(line)?.[1], 'reading journal-00000001.log')

  const lines: LogLine[] = []
  await (await openStore(directory, {}, lines)).close()
  const recovering = lines.filter(({ message }) => message === 'recovering')
  assert.ok(recovering.length > 1)
  let [batches, bytes] = [0, 0]
  for (const { fields = {} } of recovering) {
    assert.deepEqual([fields['journal'], fields['totalBytes']], ['journal-00000001.log', size])
    assert.ok(Number(fields['batches']) > batches && Number(fields['bytes']) > bytes)
    ;[batches, bytes] = [Number(fields['batches']), Number(fields['bytes'])]
  }
  assert.ok(batches <= 100 && bytes <= size)

  const told: string[] = []
  const importing = new Progress((text) => told.push(text))
  const open: Parameters<typeof importStore>[0] = (log) => {
    for (let bytes = 1e6; bytes < 20e6; bytes += 1e6)
      log.info('recovering', { bytes, totalBytes: 20e6 })
    return openStore(`${file}.data`)
  }
  assert.match(await importStore(open, file, importing), /^100 plants read/)
  assert.ok(told.some((line) => LINE.exec(line)?.[1] === 'recovering'))
})
