import assert from 'node:assert/strict'
import { chmodSync, chownSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { ConfigError, createPlantService } from '../../dist/index.js'
import { refusalOf } from '../../dist/runtime.js'
import { launch, MAIN, serviceEnvironment } from '../support/launch.ts'
import { preload, run } from '../support/process.ts'
import { ROOT } from '../support/release.ts'
import { temporaryDirectory } from '../support/service.ts'
import { SECRET } from '../support/tokens.ts'

/** What a start prints that fails, and its status. */
async function failedStart(env: Readonly<Record<string, string>>, data?: string, prefix?: string[]) {
  const directory = data ?? join(await temporaryDirectory(), 'data')
  const { exited, output } = launch(serviceEnvironment(directory, env), prefix ? { prefix } : {})
  return { status: await exited, output: output() }
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
  const { status, output } = await failedStart({}, undefined, limited)
  assert.equal(status, 1)
  assert.match(output, /^plant-store: SQLite cannot be loaded: .*[Mm]emory.*\n$/)
  assert.match(output, /address space, which is not memory: lift ulimit -v or LimitAS=\n$/)
})

test('surroundings: SQLite that cannot be loaded is told in one line', async () => {
  const { status, output } = await failedStart(await preload(NO_WASM))
  assert.equal(status, 1)
  assert.match(output, /^plant-store: SQLite cannot be loaded: WebAssembly.* magic word .*\n$/)
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
    const { status, output } = await failedStart({}, each, prefix)
    assert.equal(status, 1)
    assert.match(output, /EACCES: permission denied.* \(this process is uid 65532, gid 65531\)\n$/)
  }
})

const [, of20, of22] = /"node": "\^([0-9.]+) \|\| \^([0-9.]+) \|\| >=24.0.0"/.exec(
  readFileSync(join(ROOT, 'package.json'), 'utf8'),
) ?? assert.fail('engines')
const NEEDED = `Node ${of20} or later, ${of22} or later, or 24 or later is needed`

for (const [versions, status, message] of [
  [{ node: '18.20.8' }, 2, `${NEEDED}, and this is 18.20.8`],
  [{ node: '20.18.3' }, 2, `${NEEDED}, and this is 20.18.3`],
  [{ node: '20.19.1' }, 2, `${NEEDED}, and this is 20.19.1`],
  [{ node: '20.19.2' }],
  [{ node: '20.20.0' }],
  [{ node: '21.99.0' }, 2, `${NEEDED}, and this is 21.99.0`],
  [{ node: '22.10.9' }, 2, `${NEEDED}, and this is 22.10.9`],
  [{ node: '22.11.0' }],
  [{ node: '23.11.1' }, 2, `${NEEDED}, and this is 23.11.1`],
  [{ node: '24.0.0' }],
  [{ node: '30.0.0' }],
  // As these runtimes do it: they have Node's version too.
  [{ node: '24.0.0', deno: '2.5.0' }, 1, `this is deno 2.5.0, not Node: ${NEEDED}`],
  [{ node: '24.0.0', bun: '1.3.0' }, 1, `this is bun 1.3.0, not Node: ${NEEDED}`],
] as const)
  test(`surroundings: ${JSON.stringify(versions)} is ${message ? 'refused' : 'fine'}`, async (t) => {
    const refusal = message === undefined ? undefined : { status, message }
    const { versions: own } = process
    t.after(() => Object.defineProperty(process, 'versions', { value: own }))
    Object.defineProperty(process, 'versions', { value: { ...own, ...versions } })
    assert.deepEqual(refusalOf(), refusal)
    const embedding = () => createPlantService({ issuer: 'i', audience: 'a', jwtSecret: SECRET })
    if (refusal) assert.throws(embedding, new ConfigError([refusal.message]))
    else await embedding().close()
  })

test('surroundings: a Node that is too old ends with one line, before any import', async () => {
  // A static import is loaded before the first line runs.
  const staticImportsOf = (path: string): readonly string[] =>
    [...readFileSync(path, 'utf8').matchAll(/^\s*(?:import|export)\b[^('"]*['"](.*)['"]/gm)].map(
      ([, target = '']) => target,
    )
  assert.deepEqual(staticImportsOf(MAIN), ['./runtime.js'])
  assert.deepEqual(staticImportsOf(join(MAIN, '../runtime.js')), [])
  const old = await preload(`
    const value = { ...process.versions, node: '18.20.8' }
    Object.defineProperty(process, 'versions', { value })`)
  const stderr = `plant-store: ${NEEDED}, and this is 18.20.8\n`
  assert.deepEqual(await run(['--version'], old), { status: 2, stdout: '', stderr })
})
