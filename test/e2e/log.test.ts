import assert from 'node:assert/strict'
import { appendFileSync, readFileSync, truncateSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { call, post } from '../support/http.ts'
import { MAIN, preload, type ServerProcess, startProcess } from '../support/process.ts'
import { VERSION } from '../support/release.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { SECRET } from '../support/tokens.ts'

/** The line of a start, and what was recovered without its time. */
function startLine({ output }: ServerProcess) {
  const found = /^\{.*"message":"listening".*\}$/m.exec(output())?.[0] ?? assert.fail(output())
  const { time, recovered, ...line }: Readonly<Record<string, unknown>> = JSON.parse(found)
  return { time: String(time), recovered: { ...Object(recovered), ms: 0 }, line }
}

/** Lines of good requests are left out. */
const ERRORS = { PLANTS_LOG_REQUESTS: 'errors' }

/** The messages of the log, each with the status of its request. */
function told({ output }: ServerProcess): readonly string[] {
  const lines = output().matchAll(/"message":"(\w+)"(?:.*"status":(\d+))?/g)
  return Array.from(lines, ([, message, status = '']) => `${message} ${status}`.trim())
}

test('log: a start, a failed batch and a stop say what is needed, and no secret', async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  const database = new URL('store/sqljs/memory/database.js', pathToFileURL(MAIN)).href
  const broken = await preload(`
    const { PlantDatabase } = await import(${JSON.stringify(database)})
    const { insert } = PlantDatabase.prototype
    PlantDatabase.prototype.insert = function (rows) {
      if (rows[0][1] > 3) throw new Error('out of memory')
      return insert.call(this, rows)
    }`)
  const first = await startProcess(t, directory, { ...ERRORS, ...broken })
  const { time, recovered, line } = startLine(first)
  assert.ok(Math.abs(Date.parse(time) - Date.now()) < 60_000)
  assert.deepEqual(recovered, { plants: 0, batches: 0, tornBytes: 0, ms: 0 })
  assert.deepEqual(line, {
    level: 'info',
    message: 'listening',
    version: VERSION,
    plants: `http://127.0.0.1:${first.port}`,
    admin: `http://127.0.0.1:${first.adminPort}`,
    data: directory,
    keys: 'secret',
  })
  for (let id = 1; id <= 3; id++)
    assert.equal((await post(first.port, { id, name: 'Fern' })).status, 200)
  assert.equal((await call(first.port, { token: undefined })).status, 401)
  await until('it is logged', () => told(first).length > 1)
  assert.deepEqual(told(first), ['listening', 'request 401'])
  // The plant is in the journal, and its insert fails: the process ends, and the next one has it.
  await assert.rejects(post(first.port, { id: 4, name: 'Moss' }))
  assert.equal(await first.exited, 1)
  await until('it is on stderr', () => first.output().includes('out of memory'))
  assert.match(first.output(), /^plant-store: memory and disk may differ; .*out of memory$/m)
  assert.ok(!first.output().includes(SECRET))
  const journal = join(directory, 'journal-00000001.log')
  truncateSync(journal, readFileSync(journal).lastIndexOf('\n') + 1)
  appendFileSync(journal, '0123abcd 5 [["al')

  const second = await startProcess(t, directory, {
    PLANTS_JWT_SECRET: '',
    PLANTS_JWKS_URL: 'http://127.0.0.1:1/keys?code=hidden',
    ...ERRORS,
  })
  const again = startLine(second)
  const { keys, keysFrom } = again.line
  assert.deepEqual([keys, keysFrom], ['url', 'http://127.0.0.1:1/keys'])
  assert.deepEqual(again.recovered, { plants: 4, batches: 4, tornBytes: 16, ms: 0 })
  assert.equal(await second.kill('SIGTERM'), 0)
  assert.deepEqual(told(second), ['listening', 'stopping', 'stopped'])
})
