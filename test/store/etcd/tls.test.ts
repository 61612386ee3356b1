import assert from 'node:assert/strict'
import { generateKeyPairSync, X509Certificate } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { AUTHORITY, CERTIFICATE, EXPIRED, KEY, SELF_SIGNED } from '../../support/etcd-pem.ts'
import { run } from '../../support/process.ts'
import { problems, temporaryDirectory } from '../../support/service.ts'
import { SECRET } from '../../support/tokens.ts'

const MINIMUM = {
  PLANTS_ISSUER: 'https://issuer.test',
  PLANTS_AUDIENCE: 'plants',
  PLANTS_JWT_SECRET: SECRET,
}

test('PEM that cannot be used is named by its variable, and ends the start', async () => {
  const directory = await temporaryDirectory()
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const files = {
    authority: AUTHORITY,
    certificate: CERTIFICATE,
    bundle: `a comment\n${CERTIFICATE}${AUTHORITY}`,
    expired: EXPIRED,
    selfSigned: SELF_SIGNED,
    key: KEY,
    otherKey: privateKey.export({ type: 'pkcs8', format: 'pem' }),
    empty: '',
    noPem: new X509Certificate(CERTIFICATE).raw,
  }
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content)
  const env = (ca: string, cert: string, key: string): Record<string, string> => ({
    ...MINIMUM,
    PLANTS_ETCD_ENDPOINTS: 'https://127.0.0.1:1',
    PLANTS_ETCD_CA_FILE: join(directory, ca),
    PLANTS_ETCD_CERT_FILE: join(directory, cert),
    PLANTS_ETCD_KEY_FILE: join(directory, key),
  })
  const wrong = (...files: Parameters<typeof env>): readonly string[] =>
    problems(env(...files)).map((problem) => problem.replace(/ cannot be used: .+$/, ''))
  assert.deepEqual(wrong('authority', 'certificate', 'key'), [])
  // The chain after the certificate; an authority after another certificate.
  assert.deepEqual(wrong('bundle', 'bundle', 'key'), [])
  // As etcd --auto-tls makes them: trusted for itself.
  assert.deepEqual(wrong('selfSigned', 'selfSigned', 'key'), [])
  // It may be the clock that is wrong.
  assert.deepEqual(wrong('authority', 'expired', 'key'), [])
  const [ca, cert, key] = ['CA', 'CERT', 'KEY'].map((name) => `PLANTS_ETCD_${name}_FILE`)
  assert.deepEqual(wrong('authority', 'certificate', 'otherKey'), [key])
  assert.deepEqual(wrong('authority', 'authority', 'key'), [key])
  for (const bad of ['noPem', 'empty', 'key']) {
    assert.deepEqual(wrong(bad, 'certificate', 'key'), [ca], bad)
    assert.deepEqual(wrong('authority', bad, 'key'), [cert], bad)
  }
  for (const bad of ['noPem', 'empty', 'certificate'])
    assert.deepEqual(wrong('authority', 'certificate', bad), [key], bad)
  const { status, stderr } = await run(['serve'], env('authority', 'certificate', 'otherKey'))
  assert.equal(status, 2)
  assert.match(stderr, /PLANTS_ETCD_KEY_FILE cannot be used: .*key values mismatch/)
})
