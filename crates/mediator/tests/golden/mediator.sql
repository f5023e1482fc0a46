PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('keys','{"version":1,"kind":"root","last":1,"keys":[{"id":1,"from":1795984303444,"until":1796160703444,"secret":"oUk6ukm54g3TGG90sybFdwrAuM_sHsKZSURDgwIxH3w"}]}');
INSERT INTO meta VALUES('mediator','"6555d1e5cdc741e2effc00cf35202b9b"');
CREATE TABLE names (
    parent BLOB NOT NULL, name TEXT NOT NULL, id BLOB NOT NULL UNIQUE, kind TEXT NOT NULL,
    capacity INTEGER NOT NULL, length INTEGER NOT NULL, made INTEGER NOT NULL,
    changed INTEGER NOT NULL, is_pending INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;
INSERT INTO names VALUES(X'00000000000000000000000000000000','films',X'db878f11637d254bcdbdcd79a2f497d1','directory',0,0,1795984309108,1795984309108,0);
INSERT INTO names VALUES(X'00000000000000000000000000000000','vm',X'f9988d108beaa625464168b270fd78bf','directory',0,0,1795984308980,1795984308980,0);
INSERT INTO names VALUES(X'db878f11637d254bcdbdcd79a2f497d1','part',X'5e5ad89af63774add4335fd4c85b71e4','data',3670016,0,1795984317746,1795984317746,0);
INSERT INTO names VALUES(X'db878f11637d254bcdbdcd79a2f497d1','two',X'6e59ec60a12cf557c72427c6c0ece1cc','data',3670016,3000000,1795984309108,1795984310093,0);
INSERT INTO names VALUES(X'f9988d108beaa625464168b270fd78bf','disk',X'74857e942ed324064fff42090d7fae37','volume',18350080,18350080,1795984308980,1795984308980,0);
CREATE TABLE volumes (
    id BLOB PRIMARY KEY, state TEXT NOT NULL, lease TEXT NOT NULL, is_raised INTEGER NOT NULL,
    record TEXT NOT NULL
, closed TEXT) STRICT;
INSERT INTO volumes VALUES(X'74857e942ed324064fff42090d7fae37','ready','{"generation":1,"taken_by":"d28f9de78e16cb811ed7976d7d53e271","is_raised":true,"quiet_at":0,"same_quiet_at":0,"held":{"writer":{"plan":"d28f9de78e16cb811ed7976d7d53e271","until":1795984348559}}}',1,'{"version":1,"kind":"volume","layout":{"rate":0,"request_bytes":1048576,"survives":1,"degraded":true,"level":5,"chunk_len":null,"members":3,"spread":"host","may_share":false},"placed":{"level":5,"chunk_len":131072,"logged":true,"member_bytes":11534336,"capacity_bytes":18350080,"reasons":["level 5: asked for","3 members: asked for","unit of 128 KiB: a larger one is too large for so small a volume","no rate: none was asked for"],"members":[{"agent":"8f2faea6781801c436b17e1d7cc629e4","segment":"ff6cb6d361497b4fb049ba0a9c20f022","is_fresh":false},{"agent":"599926b90f763e61ce8c7a491c41e8aa","segment":"b1cee7eed11b7c44d6c1aadd49603878","is_fresh":false},{"agent":"6f82183f4f6c85b88c21cada03680826","segment":"241a8a22244784c4bc5b56c9c2de59be","is_fresh":false}]},"is_formatted":true}',NULL);
INSERT INTO volumes VALUES(X'6e59ec60a12cf557c72427c6c0ece1cc','ready','{"generation":1,"taken_by":"e3ba726178f95d8cae21c59986655b22","is_raised":true,"quiet_at":0,"same_quiet_at":0,"held":"nobody"}',1,'{"version":1,"kind":"data","layout":{"rate":1048576,"request_bytes":1048576,"survives":1,"degraded":true,"level":5,"chunk_len":null,"members":null,"spread":"host","may_share":false},"placed":{"level":5,"chunk_len":16384,"logged":true,"member_bytes":3145728,"capacity_bytes":3670016,"reasons":["level 5: asked for","3 members: the fewest of the level","unit of 16 KiB: a larger one is too large for so small a volume","990.1 kB/s of each device, 990.1 kB/s of each network: 1.2 MB/s also with 1 lost"],"members":[{"agent":"0548b691c5df24927346fa548b327b7b","segment":"b04490e0251e603092a4813182946396","is_fresh":false},{"agent":"599926b90f763e61ce8c7a491c41e8aa","segment":"89fbe6e1643b606d20e1dced603e02ef","is_fresh":false},{"agent":"6f82183f4f6c85b88c21cada03680826","segment":"6d2d96435abbf7237cbeff70f26cd881","is_fresh":false}]},"is_formatted":true}','{"version":1,"plan":"e3ba726178f95d8cae21c59986655b22","generation":1,"clean_close":{"generation":2,"epoch":4,"in_sync":["b04490e0251e603092a4813182946396","89fbe6e1643b606d20e1dced603e02ef","6d2d96435abbf7237cbeff70f26cd881"]}}');
INSERT INTO volumes VALUES(X'5e5ad89af63774add4335fd4c85b71e4','ready','{"generation":1,"taken_by":"f2305a786ade26783325343a101bb45e","is_raised":true,"quiet_at":0,"same_quiet_at":0,"held":"nobody"}',1,'{"version":1,"kind":"data","layout":{"rate":0,"request_bytes":1048576,"survives":1,"degraded":true,"level":null,"chunk_len":null,"members":null,"spread":"host","may_share":false},"placed":{"level":5,"chunk_len":8192,"logged":true,"member_bytes":3145728,"capacity_bytes":3670016,"reasons":["level 5: takes the least space of what survives 1 lost","3 members: the fewest of the level","unit of 8 KiB: a larger one is too large for so small a volume","no rate: none was asked for"],"members":[{"agent":"0548b691c5df24927346fa548b327b7b","segment":"3fb11fe80d4301524a532e7923f9bb0d","is_fresh":false},{"agent":"8f2faea6781801c436b17e1d7cc629e4","segment":"3559de00c88c7c61ae3a40e69912aaad","is_fresh":false},{"agent":"599926b90f763e61ce8c7a491c41e8aa","segment":"85b9607f0263382dfc7144e1ab437ffa","is_fresh":false}]},"is_formatted":true,"upload_bytes":2000000}','{"version":1,"plan":"f2305a786ade26783325343a101bb45e","generation":1,"clean_close":{"generation":2,"epoch":4,"in_sync":["3fb11fe80d4301524a532e7923f9bb0d","3559de00c88c7c61ae3a40e69912aaad","85b9607f0263382dfc7144e1ab437ffa"]}}');
CREATE TABLE segments (
    segment BLOB PRIMARY KEY, agent BLOB NOT NULL, volume BLOB NOT NULL,
    state TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO segments VALUES(X'241a8a22244784c4bc5b56c9c2de59be',X'6f82183f4f6c85b88c21cada03680826',X'74857e942ed324064fff42090d7fae37','live');
INSERT INTO segments VALUES(X'3559de00c88c7c61ae3a40e69912aaad',X'8f2faea6781801c436b17e1d7cc629e4',X'5e5ad89af63774add4335fd4c85b71e4','live');
INSERT INTO segments VALUES(X'3fb11fe80d4301524a532e7923f9bb0d',X'0548b691c5df24927346fa548b327b7b',X'5e5ad89af63774add4335fd4c85b71e4','live');
INSERT INTO segments VALUES(X'5b6d615bd80773e8b5d45eeb325c815d',X'0548b691c5df24927346fa548b327b7b',X'74857e942ed324064fff42090d7fae37','gone');
INSERT INTO segments VALUES(X'6d2d96435abbf7237cbeff70f26cd881',X'6f82183f4f6c85b88c21cada03680826',X'6e59ec60a12cf557c72427c6c0ece1cc','live');
INSERT INTO segments VALUES(X'85b9607f0263382dfc7144e1ab437ffa',X'599926b90f763e61ce8c7a491c41e8aa',X'5e5ad89af63774add4335fd4c85b71e4','live');
INSERT INTO segments VALUES(X'89fbe6e1643b606d20e1dced603e02ef',X'599926b90f763e61ce8c7a491c41e8aa',X'6e59ec60a12cf557c72427c6c0ece1cc','live');
INSERT INTO segments VALUES(X'b04490e0251e603092a4813182946396',X'0548b691c5df24927346fa548b327b7b',X'6e59ec60a12cf557c72427c6c0ece1cc','live');
INSERT INTO segments VALUES(X'b1cee7eed11b7c44d6c1aadd49603878',X'599926b90f763e61ce8c7a491c41e8aa',X'74857e942ed324064fff42090d7fae37','live');
INSERT INTO segments VALUES(X'ff6cb6d361497b4fb049ba0a9c20f022',X'8f2faea6781801c436b17e1d7cc629e4',X'74857e942ed324064fff42090d7fae37','live');
CREATE TABLE bookings (
    id BLOB PRIMARY KEY, record TEXT NOT NULL, work TEXT NOT NULL
) STRICT;
CREATE TABLE plans (
    id BLOB PRIMARY KEY, volume BLOB NOT NULL, owner INTEGER NOT NULL, until INTEGER NOT NULL,
    state TEXT NOT NULL, record TEXT NOT NULL
) STRICT;
INSERT INTO plans VALUES(X'e3ba726178f95d8cae21c59986655b22',X'6e59ec60a12cf557c72427c6c0ece1cc',2,1795984919225,'closed','{"version":1,"mode":"write","initiator":"iqn.2026-01.io.netraid:client.vm.e3ba726178f95d8cae21c59986655b22","rate":1048576,"limit":null,"request_bytes":1048576,"degraded":true,"for_ms":600000,"parts":[],"agents":[],"told":["0548b691c5df24927346fa548b327b7b","599926b90f763e61ce8c7a491c41e8aa","6f82183f4f6c85b88c21cada03680826"],"close_key":[145,255,173,79,119,54,17,144,197,40,4,165,82,112,34,244,126,196,75,46,181,148,253,8,18,62,38,175,26,132,228,34]}');
INSERT INTO plans VALUES(X'f26ebc4876038141d9b2494ff4ba54ce',X'6e59ec60a12cf557c72427c6c0ece1cc',2,1795984920270,'closed','{"version":1,"mode":"read","initiator":"iqn.2026-01.io.netraid:client.vm.f26ebc4876038141d9b2494ff4ba54ce","rate":0,"limit":null,"request_bytes":1048576,"degraded":true,"for_ms":600000,"parts":[],"agents":[],"told":["0548b691c5df24927346fa548b327b7b","599926b90f763e61ce8c7a491c41e8aa","6f82183f4f6c85b88c21cada03680826"],"close_key":[127,240,230,215,61,139,130,1,179,13,54,7,73,145,101,32,51,41,122,4,168,105,238,189,199,12,1,245,202,81,210,133],"clean_close":{"generation":2,"epoch":4,"in_sync":["b04490e0251e603092a4813182946396","89fbe6e1643b606d20e1dced603e02ef","6d2d96435abbf7237cbeff70f26cd881"]}}');
INSERT INTO plans VALUES(X'd28f9de78e16cb811ed7976d7d53e271',X'74857e942ed324064fff42090d7fae37',2,1795984348559,'open','{"version":1,"mode":"write","initiator":"iqn.2026-01.io.netraid:client.vm.d28f9de78e16cb811ed7976d7d53e271","rate":1048576,"limit":null,"request_bytes":1048576,"degraded":true,"for_ms":6000,"parts":[{"agent":"599926b90f763e61ce8c7a491c41e8aa","segment":"b1cee7eed11b7c44d6c1aadd49603878","resources":{"space_bytes":0,"device":636480,"network":636480}},{"agent":"6f82183f4f6c85b88c21cada03680826","segment":"241a8a22244784c4bc5b56c9c2de59be","resources":{"space_bytes":0,"device":636480,"network":636480}},{"agent":"8f2faea6781801c436b17e1d7cc629e4","segment":"ff6cb6d361497b4fb049ba0a9c20f022","resources":{"space_bytes":0,"device":636480,"network":636480}}],"agents":["0548b691c5df24927346fa548b327b7b","599926b90f763e61ce8c7a491c41e8aa","6f82183f4f6c85b88c21cada03680826","8f2faea6781801c436b17e1d7cc629e4"],"close_key":[194,57,252,214,91,106,188,73,65,133,172,69,60,114,60,212,40,71,212,58,120,88,103,38,165,249,10,64,60,9,16,246]}');
INSERT INTO plans VALUES(X'f2305a786ade26783325343a101bb45e',X'5e5ad89af63774add4335fd4c85b71e4',2,1795984927938,'closed','{"version":1,"mode":"write","initiator":"iqn.2026-01.io.netraid:client.vm.f2305a786ade26783325343a101bb45e","rate":0,"limit":102400,"request_bytes":1048576,"degraded":true,"for_ms":600000,"parts":[],"agents":[],"told":["0548b691c5df24927346fa548b327b7b","599926b90f763e61ce8c7a491c41e8aa","8f2faea6781801c436b17e1d7cc629e4"],"close_key":[199,240,221,173,24,162,4,183,250,158,228,235,82,194,8,212,43,62,181,247,95,91,50,24,250,19,201,188,220,238,6,126]}');
INSERT INTO plans VALUES(X'11736ac4850a4c9416c093b0a349a0af',X'6e59ec60a12cf557c72427c6c0ece1cc',2,1795984940059,'ending','{"version":1,"mode":"read","initiator":"iqn.2026-01.io.netraid:client.vm.11736ac4850a4c9416c093b0a349a0af","rate":107374182400,"limit":null,"request_bytes":1048576,"degraded":true,"for_ms":600000,"parts":[],"agents":["0548b691c5df24927346fa548b327b7b"],"told":["599926b90f763e61ce8c7a491c41e8aa","6f82183f4f6c85b88c21cada03680826"],"close_key":[245,128,158,95,16,30,214,227,10,218,69,13,181,149,195,251,25,137,148,4,123,231,248,55,108,132,120,246,202,199,255,169],"clean_close":{"generation":2,"epoch":4,"in_sync":["b04490e0251e603092a4813182946396","89fbe6e1643b606d20e1dced603e02ef","6d2d96435abbf7237cbeff70f26cd881"]},"is_unissued":true}');
CREATE TABLE agents (
    id BLOB PRIMARY KEY, status TEXT NOT NULL, token TEXT NOT NULL, authority TEXT,
    state TEXT NOT NULL, has_beaten INTEGER NOT NULL
) STRICT;
INSERT INTO agents VALUES(X'8f2faea6781801c436b17e1d7cc629e4','{"agent":"8f2faea6781801c436b17e1d7cc629e4","host":"host2","rack":"","api":"http://127.0.0.1:3282","portal":"127.0.0.1:3262","target":"iqn.2026-01.netraid:agent-8f2faea6781801c436b17e1d7cc629e4","capacity":{"space_bytes":4294967296,"device":536870912,"network":536870912},"kept":{"space_bytes":858993459,"device":107374182,"network":107374182},"left":{"space_bytes":3435973837,"device":429496730,"network":429496730},"left_for_rebuild":{"space_bytes":4294967296,"device":536870912,"network":536870912},"draining":false,"segments":0,"sessions":0}','d7yf_32QDqkLeBHfF9oWA1qr-TxPjyk59iyVkig0NUQ',NULL,'serving',1);
INSERT INTO agents VALUES(X'599926b90f763e61ce8c7a491c41e8aa','{"agent":"599926b90f763e61ce8c7a491c41e8aa","host":"host3","rack":"","api":"http://127.0.0.1:3283","portal":"127.0.0.1:3263","target":"iqn.2026-01.netraid:agent-599926b90f763e61ce8c7a491c41e8aa","capacity":{"space_bytes":4294967296,"device":536870912,"network":536870912},"kept":{"space_bytes":858993459,"device":107374182,"network":107374182},"left":{"space_bytes":3435973837,"device":429496730,"network":429496730},"left_for_rebuild":{"space_bytes":4294967296,"device":536870912,"network":536870912},"draining":false,"segments":0,"sessions":0}','QyvxsBY9l0Z4M0dg-CQa955OG5qCOAO7f3IAaefw8S8',NULL,'serving',1);
INSERT INTO agents VALUES(X'0548b691c5df24927346fa548b327b7b','{"agent":"0548b691c5df24927346fa548b327b7b","host":"host1","rack":"","api":"http://127.0.0.1:3281","portal":"127.0.0.1:3261","target":"iqn.2026-01.netraid:agent-0548b691c5df24927346fa548b327b7b","capacity":{"space_bytes":4294967296,"device":536870912,"network":536870912},"kept":{"space_bytes":858993459,"device":107374182,"network":107374182},"left":{"space_bytes":3435973837,"device":429496730,"network":429496730},"left_for_rebuild":{"space_bytes":4294967296,"device":536870912,"network":536870912},"draining":false,"segments":0,"sessions":0}','y1DLJCGVVySBnP2mD3vZIMVRbqe3Y4nCvR0p1dK-yso',NULL,'serving',1);
INSERT INTO agents VALUES(X'6f82183f4f6c85b88c21cada03680826','{"agent":"6f82183f4f6c85b88c21cada03680826","host":"host4","rack":"","api":"http://127.0.0.1:3284","portal":"127.0.0.1:3264","target":"iqn.2026-01.netraid:agent-6f82183f4f6c85b88c21cada03680826","capacity":{"space_bytes":4294967296,"device":536870912,"network":536870912},"kept":{"space_bytes":858993459,"device":107374182,"network":107374182},"left":{"space_bytes":3435973837,"device":429496730,"network":429496730},"left_for_rebuild":{"space_bytes":4294967296,"device":536870912,"network":536870912},"draining":false,"segments":0,"sessions":0}','D70_owbfZZxVwjJVnYW3p9jV7PIrb24PnCRV9EXhD5c',NULL,'serving',1);
CREATE TABLE access (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, role TEXT NOT NULL,
    name TEXT NOT NULL, made INTEGER NOT NULL, until INTEGER, agent BLOB
) STRICT;
INSERT INTO access VALUES(1,X'ce928c7a2798eae93d8bddc93415c520e7b9c06a65f4e22703ca7415a4d1a59d','admin','first admin',1795984303452,NULL,NULL);
INSERT INTO access VALUES(2,X'44e32627e420f2d0f0ef15ef30d6aa766d98762652ad0308fc7d5f1a2ab6ac64','client','first client',1795984303489,NULL,NULL);
INSERT INTO access VALUES(3,X'6354fd51b7fa018723da0fbeea4887552e0b8303b02d84c42734f9a632188ef2','agent','first agent',1795984303554,NULL,NULL);
INSERT INTO access VALUES(4,X'20bad223eae89a3d0debbee9e1d6c35eee77e269f96d0fc3b536cb590402b4e3','agent','agent 8f2faea6781801c436b17e1d7cc629e4',1795984304960,NULL,X'8f2faea6781801c436b17e1d7cc629e4');
INSERT INTO access VALUES(5,X'716bf735942bcf98ae23073042f508b64fe6b7e63852ba10015a849a6a8156af','agent','agent 599926b90f763e61ce8c7a491c41e8aa',1795984305010,NULL,X'599926b90f763e61ce8c7a491c41e8aa');
INSERT INTO access VALUES(6,X'abfb0c72be60f240c0eefe98ffecab4c40ee856c82026eb4f2d13cd06087dff3','agent','agent 6f82183f4f6c85b88c21cada03680826',1795984305018,NULL,X'6f82183f4f6c85b88c21cada03680826');
INSERT INTO access VALUES(7,X'1add162ecdf2adb75037a43a090298220597c3375ba623c865dcaf7bbd954f74','agent','agent 0548b691c5df24927346fa548b327b7b',1795984305024,NULL,X'0548b691c5df24927346fa548b327b7b');
INSERT INTO access VALUES(8,X'19019de59621285f64732800f420e4c087aa775b6a6457ae99f4224d2a22b0af','reader','alice',1795984317137,1796070717137,NULL);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, who TEXT NOT NULL,
    role TEXT NOT NULL, what TEXT NOT NULL, outcome TEXT NOT NULL
) STRICT;
INSERT INTO audit VALUES(1,1795984304969,'first agent','agent','join as agent 8f2faea6781801c436b17e1d7cc629e4 at http://127.0.0.1:3282','done');
INSERT INTO audit VALUES(2,1795984305016,'first agent','agent','join as agent 599926b90f763e61ce8c7a491c41e8aa at http://127.0.0.1:3283','done');
INSERT INTO audit VALUES(3,1795984305019,'first agent','agent','join as agent 6f82183f4f6c85b88c21cada03680826 at http://127.0.0.1:3284','done');
INSERT INTO audit VALUES(4,1795984305034,'first agent','agent','join as agent 0548b691c5df24927346fa548b327b7b at http://127.0.0.1:3281','done');
INSERT INTO audit VALUES(5,1795984309076,'first client','client','create Volume /vm/disk of 16777216 bytes','done');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('access',8);
INSERT INTO sqlite_sequence VALUES('audit',41);
CREATE INDEX volumes_unfinished ON volumes (state, id) WHERE state <> 'ready';
CREATE INDEX volumes_unraised ON volumes (id) WHERE is_raised = 0;
CREATE INDEX segments_of_agent ON segments (agent, segment);
CREATE INDEX segments_of_volume ON segments (volume);
CREATE INDEX segments_unsettled ON segments (state, agent) WHERE state <> 'live';
CREATE INDEX plans_of_volume ON plans (volume);
CREATE INDEX plans_by_end ON plans (state, until);
CREATE INDEX plans_of_owner ON plans (owner, state);
COMMIT;
PRAGMA user_version=4;
