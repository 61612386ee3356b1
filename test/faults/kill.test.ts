import assert from 'node:assert/strict'
import { mkdir, stat } from 'node:fs/promises'
import { Agent } from 'node:http'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { checkDirectory } from '../../dist/store/sqljs/inspect.js'
import { lockDirectory } from '../../dist/store/sqljs/disk/lock.js'
import { list, openStore } from '../store/sqljs/fixtures.ts'
import { call, post } from '../support/http.ts'
import { jsonOf, Ledger, plantOf, plantsOf, type SentPlant } from '../support/ledger.ts'
import { startProcess } from '../support/process.ts'
import { seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'

/** PLANTS_TEST_KILLS sets how often; each takes about half a second. */
const KILLS = Number(process.env['PLANTS_TEST_KILLS'] ?? (THOROUGH ? 20 : 1))
const OWNER = 'alice'
const CLIENTS = 32
const WRITING_MS = THOROUGH ? 200 : 100

test(`kill -9: ${KILLS} kills under ${CLIENTS} clients lose nothing acknowledged`, async (t) => {
  const { random } = seeded(t)
  const directory = `${await temporaryDirectory()}/data`
  await mkdir(directory)
  const ledger = new Ledger()
  let unanswered: SentPlant[] = []
  let [nextId, compactions, compactedAt] = [0n, 0, 0]
  for (let round = 0; round < KILLS; round++) {
    const server = await startProcess(t, directory, { PLANTS_LOG_LEVEL: 'info' })
    ledger.showsAll(OWNER, plantsOf((await call(server.port)).text), true)
    assert.deepEqual(ledger.problems, [], `round ${round}`)
    const agent = new Agent({ keepAlive: true })
    // The last creates without an answer are sent again.
    const again = unanswered.slice(-CLIENTS)
    unanswered = []
    let running = true
    const clients = Array.from({ length: CLIENTS }, async () => {
      while (running) {
        const text = 'x'.repeat(random() < 0.1 ? 40_000 : 40)
        const plant = again.pop() ?? plantOf(nextId++, text)
        ledger.sends(OWNER, plant)
        const sent = post(server.port, jsonOf(plant), { agent })
        const status = await sent.then((reply) => reply.status).catch(() => undefined)
        if (status === undefined) unanswered.push(plant)
        else ledger.answered(OWNER, plant, status)
        assert.ok(status === undefined || status === 200)
      }
    })
    // Every fifth round is long enough for a whole compaction.
    const before = ledger.acknowledged
    await until('plants are created', () => ledger.acknowledged > before)
    await sleep(WRITING_MS * (round % 5 === 4 ? 4 : 0.5 + random()))
    const exited = server.kill('SIGKILL')
    running = false
    await exited
    await Promise.all(clients)
    agent.destroy()
    const { mtimeMs = 0 } = (await stat(`${directory}/plants.sqlite`).catch(() => undefined)) ?? {}
    if (mtimeMs !== compactedAt) compactions += 1
    compactedAt = mtimeMs
  }
  const store = await openStore(directory, { lock: lockDirectory })
  ledger.showsAll(OWNER, await list(store), true)
  assert.deepEqual(ledger.problems, [])
  await store.close()
  await checkDirectory(directory)
  assert.ok(ledger.acknowledged > KILLS)
  t.diagnostic(`${ledger.acknowledged} plants kept, a new snapshot in ${compactions} rounds`)
})
