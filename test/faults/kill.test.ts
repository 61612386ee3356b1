import assert from 'node:assert/strict'
import { mkdir, stat } from 'node:fs/promises'
import { Agent, request } from 'node:http'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { checkStore } from '../../dist/cli/check.js'
import { call } from '../support/http.ts'
import { startProcess } from '../support/process.ts'
import { seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'

/** PLANTS_TEST_KILLS sets how often; each takes about half a second. */
const KILLS = Number(process.env['PLANTS_TEST_KILLS'] ?? (THOROUGH ? 20 : 4))
const CLIENTS = 32
const WRITING_MS = 200

interface Sent {
  readonly id: number
  readonly name: string
}

/** Creates a plant and gives the status, or undefined where no answer came. */
function create(
  agent: Agent,
  port: number,
  bearer: string,
  plant: Sent,
): Promise<number | undefined> {
  return new Promise((resolve) => {
    const req = request(
      {
        host: '127.0.0.1',
        port,
        method: 'POST',
        path: '/plants',
        agent,
        headers: { authorization: bearer, 'content-type': 'application/json' },
      },
      (res) => {
        res.on('error', () => resolve(undefined))
        res.on('close', () => resolve(undefined))
        res.resume().on('end', () => resolve(res.statusCode))
      },
    )
    req.on('error', () => resolve(undefined))
    req.end(JSON.stringify(plant))
  })
}

test(`kill -9: killed ${KILLS} times while ${CLIENTS} clients write, it starts again each time with every plant it acknowledged`, async (t) => {
  const { random } = seeded(t)
  const directory = `${await temporaryDirectory()}/data`
  await mkdir(directory)
  const bearer = `Bearer ${token('alice')}`
  const acknowledged = new Map<string, Sent>()
  const sent = new Map<string, Sent>()
  let nextId = 0
  let compactions = 0
  let compactedAt = 0
  for (let round = 0; round <= KILLS; round++) {
    const server = await startProcess(t, directory, { PLANTS_LOG_LEVEL: 'info' })
    // A plant's name holds its id, which a list does not show.
    const found = new Map(
      (JSON.parse((await call(server.port)).text) as readonly Sent[]).map(({ name }) => [
        name.split(' ')[0] ?? '',
        name,
      ]),
    )
    for (const [key, { name }] of acknowledged)
      assert.ok(
        found.get(key) === name,
        `plant ${key} was acknowledged, and is lost in round ${round}`,
      )
    for (const [key, name] of found)
      assert.ok(sent.get(key)?.name === name, `plant ${key} was never sent so`)
    if (round === KILLS) {
      assert.equal(await server.kill('SIGTERM'), 0)
      break
    }
    // What was sent and not answered is sent again, and one that was answered.
    const agent = new Agent({ keepAlive: true })
    const again = [...sent.entries()]
      .filter(([key]) => !acknowledged.has(key))
      .slice(-CLIENTS)
      .map(([, plant]) => plant)
    let running = true
    const clients = Array.from({ length: CLIENTS }, async () => {
      while (running) {
        const id = nextId++
        const plant = again.pop() ?? {
          id,
          name: `${id} `.padEnd(random() < 0.1 ? 40_000 : 40, 'x'),
        }
        const key = String(plant.id)
        sent.set(key, plant)
        const status = await create(agent, server.port, bearer, plant)
        if (status === 200) acknowledged.set(key, plant)
        else assert.equal(status, undefined)
      }
    })
    // Now and then long enough for a compaction to come to its end.
    const before = acknowledged.size
    await until('plants are created', () => acknowledged.size > before)
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
  await checkStore(directory)
  assert.ok(acknowledged.size > KILLS)
  t.diagnostic(
    `${acknowledged.size} plants acknowledged, ${sent.size - acknowledged.size} never answered, a new snapshot in ${compactions} rounds`,
  )
})
