import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { environment, MAIN, serviceEnvironment } from '../support/launch.ts'
import { preload } from '../support/process.ts'
import { ROOT } from '../support/release.ts'
import { temporaryDirectory } from '../support/service.ts'
import { PATIENCE_MS } from '../support/time.ts'

interface Start {
  /** A command that runs the rest of the command line. */
  readonly prefix?: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  readonly data?: string
  /** The arguments of node. */
  readonly args?: readonly string[]
}

/** What a start prints that fails, and its status. */
async function failedStart({ prefix = [], env = {}, data, args = [MAIN, 'serve'] }: Start) {
  const directory = data ?? join(await temporaryDirectory(), 'data')
  const [command = '', ...rest] = [...prefix, process.execPath, ...args]
  const { status, stdout, stderr } = spawnSync(command, rest, {
    env: environment({ ...serviceEnvironment(directory), ...env }),
    encoding: 'utf8',
    timeout: PATIENCE_MS,
    killSignal: 'SIGKILL',
  })
  return { status, stdout, stderr }
}

const NO_WASM = `
  import fs from 'node:fs'
  import { syncBuiltinESMExports } from 'node:module'
  const isIt = (path) => String(path).endsWith('sql-wasm.wasm')
  const { readFileSync, readFile } = fs
  fs.readFileSync = (path, ...rest) =>
    isIt(path) ? Buffer.from('no wasm') : readFileSync(path, ...rest)
  fs.readFile = (path, ...rest) =>
    isIt(path) ? rest.at(-1)(null, Buffer.from('no wasm')) : readFile(path, ...rest)
  syncBuiltinESMExports()`

// Under this limit Node 22 ends at its own WebAssembly, and later ones reserve less and start.
const skip = process.version.startsWith('v20.') ? false : 'SKIPPED: it is Node 20 that needs more'

test('surroundings: a limit of address space is told in one line', { skip }, async () => {
  const limited = ['sh', '-c', 'ulimit -v 4000000; exec "$0" "$@"']
  const { status, stderr } = await failedStart({ prefix: limited })
  assert.equal(status, 1)
  const [line = '', ...more] = stderr.trim().split('\n')
  assert.deepEqual(more, [])
  assert.match(line, /^plant-store: SQLite cannot be loaded: .*[Mm]emory/)
  assert.match(line, /address space, which is not memory: lift ulimit -v or LimitAS=$/)
})

test('surroundings: SQLite that cannot be loaded is told in one line', async () => {
  const { status, stderr } = await failedStart({ env: await preload(NO_WASM) })
  assert.equal(status, 1)
  assert.match(stderr, /^plant-store: SQLite cannot be loaded: WebAssembly.* magic word .*\n$/)
})

test('surroundings: a directory of another user is told with the own uid and gid', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('SKIPPED: only root can become another user')
  const parent = await temporaryDirectory()
  chmodSync(parent, 0o755)
  const data = join(parent, 'volume')
  mkdirSync(data, { mode: 0o755 })
  chownSync(data, 1234, 1234)
  const prefix = ['setpriv', '--reuid=65532', '--regid=65531', '--clear-groups']
  for (const each of [data, join(data, 'below')]) {
    const { status, stderr } = await failedStart({ prefix, data: each })
    assert.equal(status, 1)
    assert.match(stderr, /EACCES: permission denied.* \(this process is uid 65532, gid 65531\)\n$/)
  }
})

const INDEX = pathToFileURL(join(ROOT, 'dist/index.js')).href
const NEEDED = 'Node 20.19.2 or later, 22.11.0 or later, or 24 or later is needed'

for (const [name, version] of [
  ['deno', '2.5.0'],
  ['bun', '1.3.0'],
] as const) {
  // As these runtimes do it: process.versions has Node's version too.
  const pretend = `
    const versions = { ...process.versions, ${name}: '${version}' }
    Object.defineProperty(process, 'versions', { value: versions })`

  test(`surroundings: ${name} is refused by name, and which Node is needed`, async () => {
    const { status, stdout, stderr } = await failedStart({ env: await preload(pretend) })
    const why = `plant-store: this is ${name} ${version}, not Node: ${NEEDED}\n`
    assert.deepEqual([status, stdout, stderr], [1, '', why])
  })

  test(`surroundings: embedded in ${name}, it is a ConfigError`, async () => {
    const script = `
      import { ConfigError, createPlantService } from '${INDEX}'
      const options = { issuer: 'i', audience: 'a', jwtSecret: 'x'.repeat(32) }
      try {
        createPlantService(options)
      } catch (error) {
        console.log(error instanceof ConfigError, error.message)
      }`
    const args = ['--input-type=module', '-e', script]
    const { stdout } = await failedStart({ env: await preload(pretend), args })
    assert.equal(stdout, `true this is ${name} ${version}, not Node: ${NEEDED}\n`)
  })
}

