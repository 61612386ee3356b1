import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pathToFileURL } from 'node:url'
import { checkDirectory } from '../../dist/store/sqljs/inspect.js'
import { readDevKey, signDevToken } from '../../dist/cli/token.js'
import { readWithoutKeys } from '../../dist/cli/settings.js'
import { plant, shown } from '../contract/store.contract.ts'
import { directoryOf, holds, killedAfter, openStore } from '../store/sqljs/fixtures.ts'
import { call } from '../support/http.ts'
import { underWay } from '../support/metrics.ts'
import { launch, serviceEnvironment } from '../support/launch.ts'
import { MAIN, preload, startProcess } from '../support/process.ts'
import { LONG, sampled, THOROUGH } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { sqliteFile } from '../support/store-files.ts'
import { until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { postBytes, Wire } from '../support/wire.ts'

const SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

for (const signal of sampled(SIGNALS, 3)) {
  test(`signals: ${signal} drains, leaves a snapshot and ends with status 0`, async (t) => {
    const directory = join(await temporaryDirectory(), 'data')
    const server = await startProcess(t, directory)
    const half = postBytes({ id: 1, name: 'in flight' })
    const wire = (await Wire.to(server.port)).write(half.slice(0, -3))
    await underWay(server.adminPort, 1)
    const exited = server.kill(signal)
    await until('it stops', () =>
      server.output().includes(`"message":"stopping","signal":"${signal}"`),
    )
    assert.deepEqual((await wire.write(half.slice(-3)).allAnswers()).map(verdict), [200])
    assert.equal(await exited, 0)
    const left = ['journal-00000002.log', 'lock-1', 'plants.sqlite']
    assert.deepEqual(readdirSync(directory).toSorted(), left)
  })

  test(`signals: ${signal} as the second signal ends the process at once`, async (t) => {
    const directory = join(await temporaryDirectory(), 'data')
    const server = await startProcess(t, directory, {
      PLANTS_SHUTDOWN_TIMEOUT: '3600',
      // Whatever the stop waits for: this, or the request.
      PLANTS_DRAIN_DELAY: signal === 'SIGINT' ? '3600' : '0',
    })
    const wire = await Wire.to(server.port)
    wire.write(postBytes({ id: 1, name: 'half' }).slice(0, -3))
    await underWay(server.adminPort, 1)
    const [first = 'SIGTERM'] = SIGNALS.filter((each) => each !== signal)
    void server.kill(first)
    await until('it stops', () => server.output().includes('"message":"stopping"'))
    assert.equal(await server.kill(signal), 1)
  })
}

const AT_ONE_MOMENT = 'signals: the second of two at one moment ends the process at once'

test(AT_ONE_MOMENT, { skip: LONG }, async (t) => {
  const twice = "for (const name of ['SIGTERM', 'SIGTERM']) process.kill(process.pid, name)"
  const env = await preload(`process.on('SIGUSR2', () => { ${twice} })`)
  const directory = join(await temporaryDirectory(), 'data')
  const server = await startProcess(t, directory, { PLANTS_DRAIN_DELAY: '5', ...env })
  assert.equal(await server.kill('SIGUSR2'), 1)
})

/** Sends itself a signal at a moment when most of the command is not loaded yet. */
const EARLY = `
  const { on } = process
  process.on = function (name, listener) {
    on.call(process, name, listener)
    if (name === 'SIGUSR1') process.kill(process.pid, 'SIGTERM')
    return process
  }`
const AS_PID_1 = ['unshare', '--pid', '--fork', '--kill-child']
const canBePid1 = spawnSync('unshare', [...AS_PID_1.slice(1), 'true']).status === 0
if (!canBePid1) console.log('SKIPPED: as PID 1, which needs root and unshare')

/** Since Node 22 modules load without a turn of the loop: short commands end before it tells. */
const mayEndFirst = Number(process.versions.node.split('.')[0]) >= 22

/** With the status that each has if it ends first. */
const COMMANDS = [
  ['export FILE', 143],
  ['--help', 0],
  ['serve --nope', 2],
  ['check', 1],
] as const
/** A process without a handler ignores signals as PID 1: where it ends, others do. */
const PREFIXES = canBePid1 ? sampled([AS_PID_1, []], 2) : [[]]

for (const [line, own] of [['serve', undefined] as const, ...sampled(COMMANDS, 4)])
  for (const prefix of own === undefined || THOROUGH ? PREFIXES : [[]])
    test(`signals: one before "${line}" is loaded (${prefix.join(' ')}) ends it`, async () => {
      const directory = join(await temporaryDirectory(), 'data')
      const env = serviceEnvironment(directory, await preload(EARLY))
      const { child, exited, output } = launch(env, { args: line.split(' '), prefix })
      const status = await exited
      assert.equal(child.signalCode, null)
      const stopped = /"message":"stopping","signal":"SIGTERM"}\n.*"stopped"}\n$/
      if (own === undefined) {
        assert.equal(status, 0)
        return assert.match(output(), stopped)
      }
      if (mayEndFirst && status === own) return
      assert.deepEqual([status, output()], [143, ''])
    })

/** Delays the opening of the store until SIGUSR2, and writes `recovering` to stderr. */
function slowRecovery(): Promise<Readonly<Record<string, string>>> {
  const store = JSON.stringify(new URL('store/sqljs/sqljs-store.js', pathToFileURL(MAIN)).href)
  return preload(`
    import { once } from 'node:events'
    import { isMainThread } from 'node:worker_threads'
    const { SqljsStore } = await import(${store})
    const { open } = SqljsStore
    if (isMainThread) SqljsStore.open = async (options) => {
      const released = once(process, 'SIGUSR2')
      const busy = setInterval(() => {}, 1000)
      process.stderr.write('recovering\\n')
      await released
      clearInterval(busy)
      return open.call(SqljsStore, options)
    }`)
}

/** Stops a service while it recovers, then lets the recovery go on. Returns the log. */
async function stopDuringRecovery(t: TestContext, directory: string): Promise<string> {
  const env = { PLANTS_DRAIN_DELAY: '3600', ...(await slowRecovery()) }
  const { child, exited, output } = launch(serviceEnvironment(directory, env))
  t.after(() => child.kill('SIGKILL'))
  await until('it recovers', () => output().includes('recovering'))
  child.kill('SIGTERM')
  await until('it stops', () => output().includes('"message":"stopping"'))
  child.kill('SIGUSR2')
  assert.deepEqual([await exited, child.signalCode], [0, null])
  return output()
}

test('signals: a stop during a recovery waits for it and loses nothing', async (t) => {
  const directory = await directoryOf(await killedAfter([plant(1n)]))
  const log = await stopDuringRecovery(t, directory)
  assert.doesNotMatch(log, /"message":"listening"|"level":"error"/)
  await holds(directory, [shown(plant(1n))])
})

test('signals: a stop during a start that fails hides no damage', async (t) => {
  const damaged = Buffer.from('no journal\n')
  const directory = await directoryOf(new Map([['journal-00000001.log', damaged]]))
  const log = await stopDuringRecovery(t, directory)
  assert.match(log, /"message":"the start failed while it was stopped".*is damaged at byte 0/)
  await assert.rejects(openStore(directory), /is damaged at byte 0/)
})

/** Starts a command whose stdout and stderr have lost their readers. */
function unread(t: TestContext, args: readonly string[], env: Readonly<Record<string, string>>) {
  const launched = launch(env, { args })
  t.after(() => launched.child.kill('SIGKILL'))
  launched.child.stdout?.destroy()
  launched.child.stderr?.destroy()
  return launched
}

test('output: serve --dev goes on without a reader', async (t) => {
  const folder = await temporaryDirectory()
  const [data, socket] = [join(folder, 'data'), join(folder, 'plants.sock')]
  const env = { PLANTS_DATA: data, PLANTS_LISTEN: `unix:${socket}`, PLANTS_ADMIN_LISTEN: 'off' }
  const { kill } = unread(t, ['serve', '--dev'], env)
  await until('it listens', () => existsSync(socket))
  const key = readDevKey(data) ?? assert.fail('there is no key')
  const bearer = signDevToken(key, readWithoutKeys(env, 'refused'), { sub: 'alice' })
  for (let i = 0; i < 3; i++) assert.equal((await call(socket, { token: bearer })).status, 200)
  assert.equal(await kill('SIGTERM'), 0)
})

test('output: import, check and export end with the same status without a reader', async (t) => {
  const folder = await temporaryDirectory()
  const [data, file] = [join(folder, 'data'), join(folder, 'plants.db')]
  // All but the last row are refused with a line each.
  const sql = `CREATE TABLE plants (owner, id, name, tag);
    WITH RECURSIVE ids(id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM ids WHERE id < 2500)
    INSERT INTO plants SELECT iif(id < 2500, 7, 'alice'), id, 'Fern', NULL FROM ids`
  writeFileSync(file, await sqliteFile(sql))
  const statusOf = (...args: string[]) => unread(t, args, { PLANTS_DATA: data }).exited
  assert.equal(await statusOf('import', file), 1)
  assert.match(await checkDirectory(data), /: 1 plant in/)
  if (!THOROUGH) return
  assert.equal(await statusOf('check'), 0)
  assert.equal(await statusOf('export', file), 1)
})

test('output: a command whose output cannot be written ends with status 1', async () => {
  const prefix = ['sh', '-c', '"$0" "$@" > /dev/full']
  const { exited, output } = launch({}, { args: ['--version'], prefix })
  const said = 'plant-store: ENOSPC: no space left on device, write\n'
  assert.deepEqual([await exited, output()], [1, said])
})
