import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { before, test } from 'node:test'
import { promisify } from 'node:util'
import { run } from '../support/process.ts'
import { ROOT } from '../support/release.ts'
import { LONG, sampled } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { directoryOf, killedAfter, notNow, plantsTo } from '../store/sqljs/fixtures.ts'
import { SECRET } from '../support/tokens.ts'

/*
 * esbuild, which tsx brings, makes one file of an application and all that it imports. A thread
 * that ran this file would run the application again.
 */
const ESBUILD = join(ROOT, 'node_modules/.bin/esbuild')
const REFUSAL =
  'plant-store cannot run from a bundle, because a thread of it runs a file of its own: leave it ' +
  'out of the bundle (esbuild: --packages=external)'

/** A compaction is due when this application opens its store. */
const APPLICATION = `
  import { isMainThread } from 'node:worker_threads'
  console.log('entry in', isMainThread ? 'the main thread' : 'a worker')
  async function main() {
    const { createPlantService } = await import('plant-store')
    const service = createPlantService({
      issuer: 'https://issuer.example',
      audience: 'plants',
      jwtSecret: '${SECRET}',
      data: process.argv[2],
      onLog({ message }) {
        console.log(message)
        if (/compacted/.test(message)) void service.close()
      },
    })
    await service.open()
  }
  main().catch(({ message }) => console.log('refused:', message))`

const directory = await temporaryDirectory()
const project = join(directory, 'project')
const elsewhere = join(directory, 'elsewhere')

before(async () => {
  for (const each of [join(project, 'node_modules'), elsewhere])
    await mkdir(each, { recursive: true })
  const packages = { 'plant-store': '', jose: 'node_modules/jose', 'sql.js': 'node_modules/sql.js' }
  for (const [name, path] of Object.entries(packages))
    await symlink(join(ROOT, path), join(project, 'node_modules', name))
  await writeFile(join(project, 'app.mjs'), APPLICATION)
})

async function bundle(entry: string, to: string, ...more: readonly string[]): Promise<void> {
  const options = ['--bundle', '--platform=node', '--log-level=error', `--outfile=${to}`]
  await promisify(execFile)(ESBUILD, [entry, ...options, ...more], { cwd: project })
}

/** What the application prints. */
async function printed(file: string, data: string): Promise<readonly string[]> {
  const { stdout } = await run([data], {}, directory, file)
  return stdout.trim().split('\n')
}

const BUNDLED = [
  ['esm', 'beside node_modules', project],
  ['cjs', 'beside node_modules', project],
  ['cjs', 'elsewhere', elsewhere],
] as const
for (const [format, where, folder] of sampled(BUNDLED, 3))
  test(`bundle: as ${format}, ${where}, it is refused when it is loaded`, async () => {
    const file = join(folder, format === 'esm' ? 'bundle.mjs' : 'bundle.cjs')
    await bundle('app.mjs', file, `--format=${format}`)
    const lines = await printed(file, join(directory, 'data'))
    assert.deepEqual(lines, ['entry in the main thread', `refused: ${REFUSAL}`])
  })

test('bundle: the command is refused when it is loaded', { skip: LONG }, async () => {
  const file = join(project, 'command.mjs')
  await bundle(join(ROOT, 'dist/main.js'), file, '--format=esm')
  const { status, stderr } = await run(['--version'], {}, directory, file)
  assert.equal(status, 1)
  assert.ok(stderr.includes(REFUSAL), stderr)
})

for (const [format, name] of Object.entries({ esm: 'external.mjs', cjs: 'external.cjs' })) {
  const title = `bundle: left out of one as ${format}, it compacts in its own thread`
  test(title, { skip: LONG }, async () => {
    const file = join(project, name)
    // So long that a compaction is due.
    const plants = plantsTo(9n).map((each) => ({ ...each, name: 'x'.repeat(2 ** 20) }))
    const files = await killedAfter(plants, { compact: notNow })
    await bundle('app.mjs', file, `--format=${format}`, '--packages=external')
    const lines = await printed(file, await directoryOf(files))
    const told = lines.filter((line) => /entry|refused|compacted/.test(line))
    assert.deepEqual(told, ['entry in the main thread', 'compacted'], lines.join('\n'))
  })
}
