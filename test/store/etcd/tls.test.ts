import assert from 'node:assert/strict'
import { generateKeyPairSync, X509Certificate } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { AUTHORITY, CERTIFICATE, pemFile } from '../../support/etcd-pem.ts'
import { problems, temporaryDirectory } from '../../support/service.ts'
import { SECRET } from '../../support/tokens.ts'

const DIRECTORY = await temporaryDirectory()

function fileOf(name: string, content: string | Buffer): string {
  const path = join(DIRECTORY, name)
  writeFileSync(path, content)
  return path
}

const [authority, client, expired] = ['authority', 'client', 'expired'].map(pemFile)
const [selfSigned, key] = ['self-signed', 'key'].map(pemFile)
const bundle = fileOf('bundle', `a comment\n${CERTIFICATE}${AUTHORITY}`)
const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const otherKey = fileOf('other-key', privateKey.export({ type: 'pkcs8', format: 'pem' }))
const binary = fileOf('binary', new X509Certificate(CERTIFICATE).raw)

const MISMATCH = /^PLANTS_ETCD_KEY_FILE is not the key of the first certificate$/
const NO_PEM = /^PLANTS_ETCD_CA_FILE cannot be read: there is no PEM in it$/
for (const [what, ca, cert, keyFile, problem] of [
  ['an authority, a certificate and its key', authority, client, key, /^$/],
  ['an authority after a certificate; a chain', bundle, bundle, key, /^$/],
  ['a certificate that trusts itself, as of --auto-tls', selfSigned, selfSigned, key, /^$/],
  ['an expired certificate: the clock may be wrong', authority, expired, key, /^$/],
  ['the key of another certificate', authority, client, otherKey, MISMATCH],
  ['the key of the second certificate', authority, authority, key, MISMATCH],
  ['an authority that is no PEM', binary, client, key, NO_PEM],
  ['no certificate', authority, key, key, /^PLANTS_ETCD_CERT_FILE cannot .*no start line$/],
] as const) {
  test(`files of TLS: ${what}`, () => {
    const env = {
      PLANTS_ISSUER: 'https://issuer.test',
      PLANTS_AUDIENCE: 'plants',
      PLANTS_JWT_SECRET: SECRET,
      PLANTS_ETCD_ENDPOINTS: 'https://127.0.0.1:1',
      PLANTS_ETCD_CA_FILE: ca ?? '',
      PLANTS_ETCD_CERT_FILE: cert ?? '',
      PLANTS_ETCD_KEY_FILE: keyFile ?? '',
    }
    assert.match(problems(env).join(), problem)
  })
}
